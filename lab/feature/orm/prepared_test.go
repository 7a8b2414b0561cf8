package orm

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	viagorm "github.com/onceward/onceward/lab/feature/orm/gorm"
	"github.com/onceward/onceward/store/postgres"
)

// TestPreparedSessions: a session of GORM that prepares statements for the pool works in the transaction of the guard
// too, request after request. A session that is made of the transaction shares the statements of the pool, and
// database/sql refuses them: the page names that setting.
func TestPreparedSessions(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it compiles the ORMs")
	url := servers.Postgres(t).SchemaURL(t)
	opened, err := postgres.Open(t.Context(), url)
	s := newService(t, orm{}, opened, err, "pgx", url)
	db, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: s.db}), &gorm.Config{Logger: logger.Discard})
	s.must(err)
	preparing := &gorm.Session{PrepareStmt: true}
	prepared := db.Session(preparing)
	count := func(on *gorm.DB) error {
		var n int64
		return on.Model(&viagorm.Payment{}).Count(&n).Error
	}
	address := s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.must(count(prepared)) // on a connection of the pool, which prepares the statement
		tx := viagorm.OnTx(r.Context(), prepared)
		s.must(tx.Create(&viagorm.Payment{ID: r.Header.Get("Idempotency-Key"), Amount: 7}).Error)
		s.must(count(tx))
		if err := count(tx.Session(preparing)); err == nil || !strings.Contains(err.Error(), "from different database") {
			s.Errorf("a session that prepares in the transaction: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	for i := range 3 {
		s.want("prepared", s.post(address, strconv.Itoa(i), ``), http.StatusCreated, false)
	}
	s.wantPayments("prepared", 3)
}
