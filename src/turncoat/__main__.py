"""`python -m turncoat` is `turncoat`."""

from turncoat.cli import main

main()
