"""The command line: parse, call, print, exit. No other package prints or exits."""
