"""Make one request happen. An engine is one file here and one entry in `ENGINES`; it knows nothing of load or files."""
