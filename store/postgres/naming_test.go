package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// inTime is the n-th of some keys of one time, and its first eight digits are that time.
func inTime(at string, n int) string { return fmt.Sprintf("%s-8694-739b-aea5-%012x", at, n) }

// asBefore makes tables of a version before there was a form: the first migrations made them without it.
func asBefore(t testing.TB, admin *pgxpool.Pool, version int) {
	t.Helper()
	migrateTo(t, admin, version)
	exec(t, admin, `ALTER TABLE onceward_secret DROP COLUMN form`)
	exec(t, admin, `UPDATE onceward_schema SET compatible = CASE WHEN version < 3 THEN 1 ELSE 3 END`)
}

// wantFound checks that a record is found by its hash, in Go and in SQL, under its name.
func wantFound(t testing.TB, s *postgres.Store, admin *pgxpool.Pool, id store.ID) {
	t.Helper()
	if rec, err := s.FindHash(t.Context(), id.Hash()); err != nil || rec.ID != id {
		t.Errorf("by the hash of %v (%v, %v) is found", id, rec.ID, err)
	}
	var key string
	must(t, admin.QueryRow(t.Context(), `SELECT key FROM onceward_records WHERE id = (SELECT onceward_record_id($1))`,
		id.Hash()).Scan(&key))
	if key != id.Key {
		t.Errorf("in SQL %q is found by the hash of %q", key, id.Key)
	}
	if n := number(t, admin, `SELECT count(*) FROM onceward_record WHERE id = $1::text::uuid`, s.RecordID(id)); n != 1 {
		t.Errorf("%d rows are named %s", n, s.RecordID(id))
	}
}

// TestNamesInTime: in new tables a key that tells its time is named by that and its hash, and found by its hash among
// all others, in whole tables and in partitions.
func TestNamesInTime(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 2} {
		url := servers.Postgres(t).SchemaURL(t)
		s, admin := openStore(t, url, postgres.WithPartitions(partitions)), openAdmin(t, url)
		var ids []store.ID
		for n, at := range []string{"018c0000", "018cffff", "0190163d", "0190163e", "024bffff"} {
			for i := range 5 {
				key := inTime(at, 10*n+i)
				transacted(t, s, key, nothing)
				wantReplay(t, s, key, key, "I3")
				ids = append(ids, idOf(key))
				if name := s.RecordID(idOf(key)); name[:8] != at {
					t.Errorf("the record of %s is named %s", key, name)
				}
			}
		}
		plain := own(t, s, reservation("plain")).ID
		for _, id := range append(ids, plain) {
			wantFound(t, s, admin, id)
		}
		for _, key := range []string{"absent", inTime("018c0000", 1000), inTime("0190163d", 1000), inTime("024bffff", 1000)} {
			if rec, err := s.FindHash(t.Context(), idOf(key).Hash()); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("by the hash of %s, which is not there, (%v, %v) is found", key, rec.ID, err)
			}
		}
		exercise(t, s, "key")
	}
}

// TestNamesInTimeEverywhere: what is kept beside a record is found by the same name.
func TestNamesInTimeEverywhere(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, url)
	for n, part := range []func(*testing.T, *postgres.Store, string){
		func(t *testing.T, s *postgres.Store, word string) { exerciseOwner(t, s, word) },
		func(t *testing.T, s *postgres.Store, word string) { exerciseTransactions(t, s, word) },
		func(t *testing.T, s *postgres.Store, word string) { exerciseWaiting(t, s, word) },
		func(t *testing.T, s *postgres.Store, word string) { exerciseEvidence(t, s, word) },
	} {
		part(t, s, inTime("0190163d", n))
	}
}

// TestTablesOfBeforeKeepTheirNames: tables that an earlier version made name records by their hash for ever, because
// its programs use them too (scenario 32), and those may go on.
func TestTablesOfBeforeKeepTheirNames(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	asBefore(t, admin, 5)
	key := inTime("0190163d", 1)
	s := openStore(t, url)
	transacted(t, s, key, nothing)
	if name := strings.ReplaceAll(s.RecordID(idOf(key)), "-", ""); name != idOf(key).Hash() {
		t.Errorf("the record of the hash %s is named %s", idOf(key).Hash(), name)
	}
	wantFound(t, s, admin, idOf(key))
	wantReplay(t, openStore(t, url), key, key, "scenario 32")
	status, err := postgres.Status(t.Context(), url)
	if must(t, err); status.Compatible > 5 {
		t.Errorf("the oldest program that may use tables of version 5 is of version %d", status.Compatible)
	}
	migrateDownTo(t, admin, 5) // there is nothing that programs of before do not know
}

// TestNewTablesAreNotForOldPrograms: a program that names keys in another way would execute them again. So it must not
// use the tables, from the first migration on, nor those of a form that only a later one knows.
func TestNewTablesAreNotForOldPrograms(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	migrateTo(t, admin, 1)
	for range 2 {
		status, err := postgres.Status(t.Context(), url)
		if must(t, err); status.Compatible != 6 {
			t.Errorf("new tables of version %d may be used by programs of version %d", status.Version, status.Compatible)
		}
		status.Wanted = 5
		if err := status.Err(); !errors.Is(err, store.ErrSchemaNewer) {
			t.Errorf("a program of version 5 is told %v", err)
		}
		must(t, postgres.Migrate(t.Context(), url, quiet))
	}
	exec(t, admin, `UPDATE onceward_secret SET form = form | 1048576`)
	wantOpenFails(t, url, "of a form (1048576) that this program does not know")
}

// TestNamesInTimeAreTakenBack: on the way back to the version before, records get the names that its programs look for,
// and keep them from then on.
func TestNamesInTimeAreTakenBack(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	for _, partitions := range []int{0, 2} {
		url := servers.Postgres(t).SchemaURL(t)
		s, admin := openStore(t, url, postgres.WithPartitions(partitions)), openAdmin(t, url)
		id := idOf(inTime("0190163d", 1))
		claim := own(t, s, reservation(id.Key))
		complete(t, s, claim, "done")
		must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: id, Attempt: 1, Actor: "ops"}))
		must(t, s.AddLateCompletion(t.Context(), store.LateCompletion{Claim: claim, Response: answer("late").Response}))
		migrateDownTo(t, admin, 5)
		status, err := postgres.Status(t.Context(), url)
		if want := 3 + partitions; err != nil || status.Compatible != want {
			t.Errorf("tables that were taken back are for programs of version %d (%v), want %d", status.Compatible, err, want)
		}
		for _, table := range []string{"record", "audit", "late_completion"} {
			if n := number(t, admin, `SELECT count(*) FROM onceward_`+table+` WHERE id = $1::text::uuid`, id.Hash()); n != 1 {
				t.Errorf("%d rows of %s are named by the hash", n, table)
			}
		}
		wantReplay(t, openStore(t, url), id.Key, "done", "scenario 32")
	}
}

// TestTheWayBackFencesPrograms: one that has read the form of the tables before it looks for other names than the rest
// from then on. It is refused and commits nothing, also after the next way up, and nobody else is.
func TestTheWayBackFencesPrograms(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	for _, partitions := range []int{0, 2} {
		url := servers.Postgres(t).SchemaURL(t)
		stays, admin := openStore(t, url, postgres.WithPartitions(partitions)), openAdmin(t, url)
		done := inTime("0190163d", 1)
		complete(t, stays, own(t, stays, reservation(done)), "done")
		migrateDownTo(t, admin, 5)
		wantRefused := func(keys ...string) {
			t.Helper()
			for _, key := range keys {
				if v, err := stays.Reserve(t.Context(), reservation(key)); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("I1: %s is reserved: %s, %v", key, v.Decision, err)
				}
				v, err := stays.Transact(t.Context(), reservation(key), committing(key, nothing))
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("I1: a transaction of %s ends with %s, %v", key, v.Decision, err)
				}
			}
		}
		wantRefused(done, inTime("0190163d", 2))
		plain := hashedLikeTime(func(n int) string { return fmt.Sprintf("plain %d", n) })
		transacted(t, stays, plain, nothing) // as a program of before does
		next := openStore(t, url)
		for _, key := range []string{hashedLikeTime(func(n int) string { return inTime("0190163d", n) }), inTime("0190163d", 3)} {
			transacted(t, next, key, nothing)
			wantRefused(key)
		}
		wantReplay(t, next, plain, plain, "scenario 32")
		wantReplay(t, next, done, "done", "scenario 32")
		exec(t, admin, `SELECT onceward_partition($1)`, 2-partitions)
		wantRefused(inTime("0190163d", 4))
		if partitions > 0 { // which are one table now
			must(t, next.Close())
			migrateDownTo(t, admin, 2)
			must(t, postgres.Migrate(t.Context(), url, quiet))
			wantRefused(done, inTime("0190163d", 5))
			transacted(t, stays, "plain", nothing)
			migrateDownTo(t, admin, 0)
		}
	}
}

// hashedLikeTime finds a key whose hash looks as if it began with a time.
func hashedLikeTime(key func(n int) string) string {
	for n := 0; ; n++ {
		if hash := idOf(key(n)).Hash(); hash >= "018c0000" && hash < "024c0000" {
			return key(n)
		}
	}
}

// TestCodedAnswersAreNotTakenBack: programs of the version before could not replay them.
func TestCodedAnswersAreNotTakenBack(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	const long = `{"id":"pay_1MzxLq2eZvKYlo2C","status":"succeeded","amount":18497,"currency":"EUR"}`
	complete(t, s, own(t, s, reservation("key")), long)
	wantReplay(t, s, "key", long, "I3")
	var status, bytes int
	must(t, admin.QueryRow(t.Context(), `SELECT answer_status, answer_bytes FROM onceward_records`).Scan(&status, &bytes))
	if want := answer(long).Response.Status; status != want || bytes >= len(long) {
		t.Errorf("the view shows an answer of status %d in %d bytes, want %d in less than %d", status, bytes, want, len(long))
	}
	err := pgx.BeginFunc(t.Context(), admin, func(tx pgx.Tx) error {
		for _, statement := range statements(t, readMigration(t, 6), "Down") {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "in a code that earlier versions do not know") {
		t.Errorf("the migration is taken back: %v", err)
	}
}

// TestAnswersOfTablesOfBefore: programs of the version before use the same tables, so that answers are written as they
// can read them (scenario 32).
func TestAnswersOfTablesOfBefore(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	asBefore(t, admin, 5)
	s := openStore(t, url)
	long := strings.Repeat(`{"status":"succeeded"}`, 4)
	complete(t, s, own(t, s, reservation("reserved")), long)
	transacted(t, s, long, nothing)
	for _, key := range []string{"reserved", long} {
		wantReplay(t, s, key, long, "I3")
		if n := number(t, admin,
			`SELECT count(*) FROM onceward_record WHERE id = $1::text::uuid AND position($2 IN answer) > 0`,
			s.RecordID(idOf(key)), []byte(long)); n != 1 {
			t.Errorf("the answer of %q is not stored as it is", key)
		}
	}
}

// TestTwoForms: tables into which those of others were loaded, with the row that says how records are named, are refused
// before a key is looked for under the wrong name.
func TestTwoForms(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, postgres.Migrate(t.Context(), url, quiet))
	exec(t, openAdmin(t, url), `INSERT INTO onceward_secret (value) VALUES ('')`)
	wantOpenFails(t, url, "onceward_secret\" has 2 rows")
}
