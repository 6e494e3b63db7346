"""Operations: one durable call of a capability, on the machinery that serves steps."""
