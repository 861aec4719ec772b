"""Turn a plan into a run: prompts, drivers, sessions, and the machine they ran on."""
