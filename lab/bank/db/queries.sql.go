package db

import "context"

// User is a row of users.
type User struct {
	Username string
	Password []byte
	Email    string
}

// Account is a row of accounts.
type Account struct {
	ID       int64  `json:"id"`
	Owner    string `json:"owner"`
	Balance  int64  `json:"balance"`
	Currency string `json:"currency"`
}

// Transfer is a row of transfers.
type Transfer struct {
	ID            int64 `json:"id"`
	FromAccountID int64 `json:"from_account_id"`
	ToAccountID   int64 `json:"to_account_id"`
	Amount        int64 `json:"amount"`
}

const createUser = `INSERT INTO users (username, password, email) VALUES ($1, $2, $3)`

// CreateUser adds a user.
func (q *Queries) CreateUser(ctx context.Context, arg User) error {
	_, err := q.db.Exec(ctx, createUser, arg.Username, arg.Password, arg.Email)
	return err
}

const getUser = `SELECT username, password, email FROM users WHERE username = $1`

// GetUser reads a user.
func (q *Queries) GetUser(ctx context.Context, username string) (User, error) {
	row := q.db.QueryRow(ctx, getUser, username)
	var i User
	err := row.Scan(&i.Username, &i.Password, &i.Email)
	return i, err
}

const createAccount = `INSERT INTO accounts (owner, balance, currency) VALUES ($1, $2, $3)
RETURNING id, owner, balance, currency`

// CreateAccountParams are the columns that CreateAccount sets.
type CreateAccountParams struct {
	Owner    string
	Balance  int64
	Currency string
}

// CreateAccount adds an account.
func (q *Queries) CreateAccount(ctx context.Context, arg CreateAccountParams) (Account, error) {
	row := q.db.QueryRow(ctx, createAccount, arg.Owner, arg.Balance, arg.Currency)
	var i Account
	err := row.Scan(&i.ID, &i.Owner, &i.Balance, &i.Currency)
	return i, err
}

const getAccount = `SELECT id, owner, balance, currency FROM accounts WHERE id = $1`

// GetAccount reads an account.
func (q *Queries) GetAccount(ctx context.Context, id int64) (Account, error) {
	row := q.db.QueryRow(ctx, getAccount, id)
	var i Account
	err := row.Scan(&i.ID, &i.Owner, &i.Balance, &i.Currency)
	return i, err
}

const addAccountBalance = `UPDATE accounts SET balance = balance + $2 WHERE id = $1
RETURNING id, owner, balance, currency`

// AddAccountBalanceParams is which account gets what.
type AddAccountBalanceParams struct {
	ID     int64
	Amount int64
}

// AddAccountBalance changes the balance of an account.
func (q *Queries) AddAccountBalance(ctx context.Context, arg AddAccountBalanceParams) (Account, error) {
	row := q.db.QueryRow(ctx, addAccountBalance, arg.ID, arg.Amount)
	var i Account
	err := row.Scan(&i.ID, &i.Owner, &i.Balance, &i.Currency)
	return i, err
}

const createTransfer = `INSERT INTO transfers (from_account_id, to_account_id, amount) VALUES ($1, $2, $3)
RETURNING id, from_account_id, to_account_id, amount`

// CreateTransferParams are the columns that CreateTransfer sets.
type CreateTransferParams struct {
	FromAccountID int64
	ToAccountID   int64
	Amount        int64
}

// CreateTransfer adds a transfer.
func (q *Queries) CreateTransfer(ctx context.Context, arg CreateTransferParams) (Transfer, error) {
	row := q.db.QueryRow(ctx, createTransfer, arg.FromAccountID, arg.ToAccountID, arg.Amount)
	var i Transfer
	err := row.Scan(&i.ID, &i.FromAccountID, &i.ToAccountID, &i.Amount)
	return i, err
}
