"""What wrote the files is code for regard 0.2, which no test imports."""

collect_ignore = ["write.py", "write_texts.py"]
