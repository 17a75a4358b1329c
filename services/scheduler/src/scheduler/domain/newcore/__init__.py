"""The core with one state, one undo journal and one question."""
