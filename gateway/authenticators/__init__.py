"""Who a client is, by other means than ``users:``: password files, tokens, a web service."""
