"""The demo pair: a real 135M target and a distilled draft of it, prepared once in the user's cache."""
