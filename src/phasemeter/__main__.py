"""`python -m phasemeter`."""

from phasemeter.cli import main

if __name__ == "__main__":
    main()
