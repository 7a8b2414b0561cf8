package page

import (
	"context"
	"database/sql"
	"io"
	"net/http"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
	"github.com/onceward/onceward/store/sqlite"
)

var _ client.Config

var (
	ctx     context.Context
	store   *sqlite.Store
	box     *outbox.Outbox
	tx      *sql.Tx
	request *http.Request

	addToken     func(request *http.Request) error
	writeOutcome func(ctx context.Context, o httpcall.Operation) error

	url  string
	body io.Reader
)
