"""Access control: accounts, address rules, signatures and rights. `addresses` serves other address lists as well."""
