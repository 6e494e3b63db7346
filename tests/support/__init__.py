"""What the tests share: waiting, servers, processes, broken networks, a ledger outside the store, a witness."""
