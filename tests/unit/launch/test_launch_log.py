from __future__ import annotations

from phasemeter.launch.log import Log


def test_lines_come_once_and_whole(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    assert log.new_lines() == []
    path.write_bytes(b"one\ntw")
    assert log.new_lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\n\x1b[36mthree\x1b[0m  \n 10%|#\r 20%|##\rlast")
    assert log.new_lines() == ["two", "three", " 10%|#", " 20%|##"]
    assert log.new_lines() == []
    assert log.new_lines(to_the_end=True) == ["last"]
    assert log.new_lines(to_the_end=True) == []


def test_bytes_that_are_no_text_do_no_harm(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xfe caf\xc3\xa9\n")
    assert Log(tmp_path / "log").new_lines() == ["\ufffd\ufffd café"]


def test_the_tail_of_a_long_file(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(50_000)) + "\n\n")
    assert Log(path).tail(2) == ("line 49998", "line 49999")
    assert Log(tmp_path / "none").tail(3) == ()
