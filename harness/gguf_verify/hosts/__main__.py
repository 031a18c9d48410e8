"""The process of a host: `python -m gguf_verify.hosts HOST THREADS PLACEMENT FILL FD`, see `process_child`."""

from .process_child import main

if __name__ == "__main__":
    main()
