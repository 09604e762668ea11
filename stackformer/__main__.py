"""`python -m stackformer NAME` is the console command `stackformer NAME`."""

from stackformer.commands.main import main

if __name__ == "__main__":
    main()
