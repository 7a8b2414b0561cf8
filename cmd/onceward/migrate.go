package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/cmd/onceward/internal/operate"
	"github.com/onceward/onceward/cmd/onceward/internal/output"
	"github.com/onceward/onceward/demo/terminal"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// migrateCommand has the commands for the tables of SQL stores.
type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Create or update the tables, after showing what it will do and asking."`
	Status migrateStatus `cmd:"" help:"Show where the tables are, their version, and missing migrations."`
	Print  migratePrint  `cmd:"" help:"Print the migrations as plain SQL, for psql -f, the MySQL client or the SQLite shell."`
	Check  migrateCheck  `cmd:"" help:"Exit with 0 if this version can use the tables, else with 1 and the reason."`
}

// schemaStatus is the JSON of the state of the tables.
type schemaStatus struct {
	Place   string   `json:"place"`
	Absent  bool     `json:"absent,omitempty"`
	Version int      `json:"version"`
	Wanted  int      `json:"wanted"`
	Pending []string `json:"pending"`
	OK      bool     `json:"ok"`
	Problem string   `json:"problem,omitempty"`
}

// schemaFlags are the flags of commands for tables.
type schemaFlags struct{ storeFlags }

// check refuses a store without tables.
func (f *schemaFlags) check() error {
	if err := operate.CheckURL(f.Store); err != nil {
		return err
	}
	at, err := storeurl.Parse(f.Store)
	switch {
	case err != nil:
		return nil // opening it returns the reason
	case at.Engine == storeurl.Redis:
		return operate.Usage("Redis has no tables: there is nothing to migrate")
	case at.Engine == storeurl.DynamoDB:
		return operate.Usage("DynamoDB has no migrations: its one table is made when the store is opened, or by what " +
			"docs/dynamodb.md says")
	}
	return nil
}

// status reads the state of the tables.
func (f *schemaFlags) status(ends interrupts) (store.SchemaStatus, error) {
	ctx, cancel := f.deadline(ends.first)
	defer cancel()
	if err := f.check(); err != nil {
		return store.SchemaStatus{}, err
	}
	status, err := storeurl.Status(ctx, f.Store)
	return status, operate.Unavailable(err)
}

// show reads the state of the tables and prints it.
func (f *schemaFlags) show(ends interrupts, out io.Writer) (store.SchemaStatus, error) {
	status, err := f.status(ends)
	if err == nil {
		err = f.write(out, &status)
	}
	return status, err
}

func (f *schemaFlags) write(out io.Writer, status *store.SchemaStatus) error {
	shown := output.New(out, f.JSON)
	problem := ""
	if err := status.Err(); err != nil {
		problem = err.Error()
	}
	if f.JSON {
		return shown.Object(schemaStatus{
			Place: status.Place, Absent: status.Absent,
			Version: status.Version, Wanted: status.Wanted,
			Pending: append([]string{}, status.Pending...), OK: problem == "", Problem: problem,
		})
	}
	place := output.Text(status.Place)
	if status.Absent {
		place += ", a file that does not exist"
	}
	shown.Fields("tables", place, "version", strconv.Itoa(status.Version),
		"this program needs", strconv.Itoa(status.Wanted), "missing", strings.Join(status.Pending, ", "))
	return nil
}

// migrateUp brings the tables up to date.
type migrateUp struct {
	schemaFlags
	confirmFlags
}

// Run shows the missing migrations, asks for confirmation, and applies them.
func (c *migrateUp) Run(ends interrupts, out io.Writer) error {
	status, err := c.status(ends)
	if err != nil {
		return err
	}
	if c.DryRun || len(status.Pending) == 0 {
		if err := c.write(out, &status); err != nil || len(status.Pending) > 0 {
			return err
		}
		return status.Err() // tables of a newer version
	}
	if !c.JSON {
		output.New(out, false).Line("migrate %s from version %d to %d: %s", output.Text(status.Place), status.Version,
			status.Wanted, strings.Join(status.Pending, ", "))
	}
	person := terminal.Is(os.Stdin) && !c.JSON // with JSON nothing was shown that could be confirmed
	if err := c.confirm(ends.first, os.Stdin, os.Stderr, doctor.Redacted(c.Store), person); err != nil {
		return err
	}
	if err := storeurl.Migrate(ends.first, c.Store); err != nil { // a large table takes its time: no deadline
		return operate.Unavailable(err)
	}
	_, err = c.show(ends, out)
	return err
}

// migrateStatus shows the state of the tables.
type migrateStatus struct{ schemaFlags }

// Run prints the state.
func (c *migrateStatus) Run(ends interrupts, out io.Writer) error {
	_, err := c.show(ends, out)
	return err
}

// migrateCheck checks that the tables can be used.
type migrateCheck struct{ schemaFlags }

// Run returns an error if the tables cannot be used.
func (c *migrateCheck) Run(ends interrupts, out io.Writer) error {
	status, err := c.show(ends, out)
	if err != nil {
		return err
	}
	return status.Err()
}

// migratePrint prints plain SQL.
type migratePrint struct {
	schemaFlags
	From *int `placeholder:"VERSION" help:"Only what comes after this version; 0 for all. Default: the tables' version."`
}

// Run prints the SQL.
func (c *migratePrint) Run(ends interrupts, out io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	from := 0
	if c.From != nil {
		from = *c.From
	} else {
		status, err := c.status(ends)
		if err != nil {
			return err
		}
		if from = status.Version; len(status.Pending) == 0 {
			_, err := io.WriteString(out, "-- Nothing to do: the tables are of version "+strconv.Itoa(from)+".\n")
			return err
		}
	}
	text, err := storeurl.PlainSQL(c.Store, from)
	if err != nil {
		return operate.Usage("%v", err)
	}
	_, err = io.WriteString(out, text)
	return err
}
