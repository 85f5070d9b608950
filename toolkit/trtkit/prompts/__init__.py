"""Prompts that models are asked: the shipped suites and users' files, as text and as token ids."""
