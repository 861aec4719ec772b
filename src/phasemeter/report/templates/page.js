"use strict";
// Draws the charts of the page from the JSON in it. Nothing is fetched; without script the tables remain.
(async function () {
  const read = (id) => document.getElementById(id).textContent;
  const charts = JSON.parse(read("charts"));
  const words = JSON.parse(read("chart-words"));

  function failed() {
    for (const node of document.querySelectorAll(".chart")) {
      node.classList.add("failed");
      node.textContent = words.no_chart;
    }
  }

  // Plotly is kept gzipped: the page is a third of the size it would have.
  async function unpack() {
    const packed = Uint8Array.from(atob(read("plotly").trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
  }

  try {
    await unpack();
  } catch (error) {
    failed();
    return;
  }

  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout) {
    const ink = token("--ink"), soft = token("--soft"), grid = token("--grid"), card = token("--card");
    const out = structuredClone(layout);
    out.paper_bgcolor = "rgba(0,0,0,0)";
    out.plot_bgcolor = "rgba(0,0,0,0)";
    out.font = Object.assign({ family: getComputedStyle(document.body).fontFamily, size: 13 }, out.font, { color: ink });
    out.hoverlabel = { bgcolor: card, bordercolor: grid, font: { color: ink }, align: "left" };
    for (const key of Object.keys(out)) {
      if (/^[xy]axis\d*$/.test(key)) {
        out[key] = Object.assign({ zerolinecolor: grid }, out[key], {
          gridcolor: grid, linecolor: grid, tickfont: { color: soft },
        });
        if (out[key].title) out[key].title = Object.assign({}, out[key].title, { font: { color: soft, size: 13 } });
      }
    }
    for (const note of out.annotations || []) {
      note.font = Object.assign({}, note.font, { color: note.font && note.font.size ? soft : ink });
    }
    return out;
  }

  const config = { displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], displayModeBar: "hover" };

  function variant(node) {
    const set = charts[node.dataset.chart];
    const run = node.dataset.run;
    const shape = document.querySelector(`select.shape[data-run="${run}"]`);
    const mode = document.querySelector(`select.mode[data-chart="${node.dataset.chart}"]`);
    const life = document.querySelector(`select.life[data-run="${run}"]`);
    let found = set.by_life ? set.by_life[life ? Number(life.value) : 0] : set.by_shape ? set.by_shape[shape ? Number(shape.value) : 0] : set.one;
    if (found && found.modes) found = found.modes[mode ? mode.value : Object.keys(found.modes)[0]];
    return found;
  }

  function draw(node) {
    const figure = variant(node);
    if (!figure) {
      if (node.drawn) Plotly.purge(node);
      node.drawn = false;
      node.classList.add("failed");
      node.textContent = words.no_data;
      return;
    }
    if (!node.drawn) node.textContent = "";
    node.classList.remove("failed");
    node.style.minHeight = "0";
    node.style.height = (figure.layout.height || 360) + "px";
    const ink = token("--ink");
    const data = structuredClone(figure.data);
    for (const trace of data) {
      if (trace.textfont && trace.textfont.color === "ink") trace.textfont.color = ink;
      if (trace.line && trace.line.color === "ink") trace.line.color = ink;
    }
    Plotly.react(node, data, themed(figure.layout), config);
    node.drawn = true;
    node.dataset.drawn = "yes";
  }

  const all = () => document.querySelectorAll(".chart").forEach(draw);

  function showShape(select) {
    for (const node of document.querySelectorAll(`[data-of-run="${select.dataset.run}"]`)) {
      node.hidden = node.dataset.shape !== select.value;
    }
  }

  for (const select of document.querySelectorAll("select.shape, select.mode")) {
    select.addEventListener("change", () => {
      if (select.classList.contains("shape")) {
        // every choice of a shape in a run is the same choice
        for (const other of document.querySelectorAll(`select.shape[data-run="${select.dataset.run}"]`)) {
          other.value = select.value;
        }
        showShape(select);
      }
      all();
    });
  }
  document.querySelectorAll("select.shape").forEach(showShape);

  function showLife(select) {
    for (const node of document.querySelectorAll(`[data-life-of-run="${select.dataset.run}"]`)) {
      node.hidden = node.dataset.life !== select.value;
    }
  }

  for (const select of document.querySelectorAll("select.life")) {
    select.addEventListener("change", () => {
      showLife(select);
      draw(document.querySelector(`.chart[data-chart="life-${select.dataset.run}"]`));
    });
    showLife(select);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
  document.documentElement.dataset.ready = "yes";
})();
