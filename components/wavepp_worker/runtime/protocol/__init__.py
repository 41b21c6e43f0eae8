"""What crosses a process or a thread inside one worker: frozen, typed messages, their codec, and the configurations."""
