package page

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

var (
	ctx   context.Context
	tx    *sql.Tx
	store *postgres.Store
	box   *outbox.Outbox

	kafkaPublisher           outbox.Publisher
	eventID, id, key, number string

	insertPayment func(ctx context.Context, tx *sql.Tx, r *http.Request) (payment, error)
	declined      func(error) bool
	sendMail      func(ctx context.Context) error
	bank          struct {
		Charge func(ctx context.Context, key string, body []byte) (struct{ ID string }, error)
	}
)

type payment struct {
	ID   string
	JSON []byte
}
