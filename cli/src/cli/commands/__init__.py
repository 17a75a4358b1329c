"""One module for each group of commands; cli.app names them."""
