"""The command line: parse, call, print, exit. No other room prints or exits."""
