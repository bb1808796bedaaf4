"""Operations that change the axes or their order, and that join and split arrays."""
