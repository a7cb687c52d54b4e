"""Training loops of others, taken over as they are: each by its own hooks and its own resume.

- ``hugging_face``: ``Trainer`` of transformers. ``lightning``: its ``Trainer``.
- ``megatron``: what of Megatron-core's state is where, for a loop of one's own.
- ``deepspeed``: ZeRO in a loop of one's own; ``zero``: what it keeps of a step, by its stages.
- ``transparent``: runs a script, of which no line is changed, as a process of a job; ``scripts``:
  what it refuses; ``import_hooks``, ``running``: what it needs for that.
- ``versions``: which versions of each were tested; ``refusal``: what cannot be exact.
- ``wrapping``, ``numbers``: methods of another object, random generators.

None of these frameworks is imported before the script has done so.
"""
