"""python -m dload"""

from dload.cli.main import main

if __name__ == "__main__":
    main()
