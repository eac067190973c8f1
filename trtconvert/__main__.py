"""python -m trtconvert: the command `trtconvert`."""

from trtconvert.cli import main

if __name__ == "__main__":
    main()
