CREATE TABLE users (
	username text PRIMARY KEY,
	password bytea NOT NULL,
	email    text NOT NULL UNIQUE
);

CREATE TABLE accounts (
	id       bigserial PRIMARY KEY,
	owner    text NOT NULL REFERENCES users (username),
	balance  bigint NOT NULL CHECK (balance >= 0),
	currency text NOT NULL,
	UNIQUE (owner, currency)
);

CREATE TABLE transfers (
	id              bigserial PRIMARY KEY,
	from_account_id bigint NOT NULL REFERENCES accounts (id),
	to_account_id   bigint NOT NULL REFERENCES accounts (id),
	amount          bigint NOT NULL CHECK (amount > 0)
);
