package payments

// schemaMySQL are the tables on MySQL and MariaDB. Keys have a length, texts are compared by their bytes, and no index
// has a condition. Missing tables are created one by one, because the creation of a table commits its transaction.
var schemaMySQL = []string{
	`CREATE TABLE IF NOT EXISTS payment (
		id         VARCHAR(255) PRIMARY KEY,
		account    VARCHAR(255) NOT NULL,
		request    VARCHAR(255) NOT NULL,
		reference  VARCHAR(255) NOT NULL,
		customer   VARCHAR(255) NOT NULL,
		amount     BIGINT NOT NULL CHECK (amount > 0 AND amount <= 100000000),
		currency   VARCHAR(3) NOT NULL,
		state      VARCHAR(16) NOT NULL,
		charge     VARCHAR(255) NOT NULL DEFAULT '',
		charged_at BIGINT NOT NULL DEFAULT 0,
		created_at VARCHAR(32) NOT NULL,
		KEY payment_account (account, created_at),
		KEY payment_charge (charge)
	)` + optionsMySQL,
	`CREATE TABLE IF NOT EXISTS refund (
		id         VARCHAR(255) PRIMARY KEY,
		payment    VARCHAR(255) NOT NULL,
		amount     BIGINT NOT NULL,
		reference  VARCHAR(255) NOT NULL,
		made_at    BIGINT NOT NULL DEFAULT 0
	)` + optionsMySQL,
	`CREATE TABLE IF NOT EXISTS booking (
		id         VARCHAR(255) PRIMARY KEY,
		account    VARCHAR(255) NOT NULL,
		request    VARCHAR(255) NOT NULL,
		reference  VARCHAR(255) NOT NULL,
		item       VARCHAR(255) NOT NULL,
		price      BIGINT NOT NULL,
		state      VARCHAR(16) NOT NULL,
		charge     VARCHAR(255) NOT NULL DEFAULT '',
		charged_at BIGINT NOT NULL DEFAULT 0,
		reason     TEXT NOT NULL DEFAULT (''),
		KEY booking_charge (charge)
	)` + optionsMySQL,
	`CREATE TABLE IF NOT EXISTS stock (
		item       VARCHAR(255) PRIMARY KEY,
		places     BIGINT NOT NULL CHECK (places >= 0)
	)` + optionsMySQL,
	`INSERT IGNORE INTO stock (item, places) VALUES ('concert', 1000000), ('theatre', 1000000), ('cellar', 1)`,
}

const optionsMySQL = ` ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`
