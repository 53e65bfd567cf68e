"""`orbitmq mqadmin`: Apache's verbs and flags as they are, with output in the original's columns, so that scripts go on."""
