from __future__ import annotations

import argparse

FlexibleArgumentParser = argparse.ArgumentParser
