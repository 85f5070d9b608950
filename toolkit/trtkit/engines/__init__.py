"""From a converted checkpoint to something a server can load: engine directories and what they say of themselves."""
