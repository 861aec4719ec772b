"""Start a process, await that it is ready, follow its log, stop its whole tree. Never an orphan."""
