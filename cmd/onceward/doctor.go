package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/cmd/onceward/internal/operate"
)

// doctorCommand tests the behaviour of a store.
type doctorCommand struct {
	URL       string        `arg:"" optional:"" env:"ONCEWARD_STORE" help:"The store: postgres://user@host/database, mysql://user@host,host/database, sqlite:PATH, redis://host:6379/0, redis+sentinel://, redis+cluster:// or dynamodb://TABLE."`
	Store     string        `placeholder:"URL" help:"The same as the argument, in the form of the other commands."`
	JSON      bool          `name:"json" help:"Write JSON."`
	Verbose   bool          `short:"v" help:"List every check with what was seen, and notes."`
	Timeout   time.Duration `default:"20s" help:"How long one check may take."`
	Metrics   string        `placeholder:"URL" help:"The service's Prometheus metrics, to compare leases and retention with what happens."`
	Lease     time.Duration `default:"30s" help:"With --metrics: the shortest lease of the service's routes."`
	Retention time.Duration `default:"24h" help:"With --metrics: the shortest retention of the service's routes."`
	ListenURL string        `placeholder:"URL" help:"PostgreSQL: where the service listens, past a pooler (postgres.WithListenURL)."`
	Replicas  int           `default:"1" help:"PostgreSQL and MySQL: processes of the service, to count connections."`
}

// These errors are returned when the store is not healthy, or when that could not be found out. Their texts are empty,
// because the report has the reasons.
var (
	errFindings  = errors.New("")
	errUnchecked = errors.New("")
)

// Run examines the store and writes the report.
func (c *doctorCommand) Run(ends interrupts, out io.Writer) error {
	if c.Timeout <= 0 {
		return operate.Usage("--timeout %s: give each check some time", c.Timeout)
	}
	report, err := doctor.Examine(ends.first, cmp.Or(c.Store, c.URL), doctor.Config{
		ListenURL: c.ListenURL, Replicas: c.Replicas,
		Metrics: c.Metrics, Lease: c.Lease, Retention: c.Retention, Timeout: c.Timeout,
	})
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	if err := c.write(out, report); err != nil {
		return err
	}
	switch {
	case len(report.Findings()) > 0:
		return errFindings
	case len(report.NotChecked()) > 0:
		return errUnchecked
	default:
		return nil
	}
}

func (c *doctorCommand) write(out io.Writer, report *doctor.Report) error {
	if !c.JSON {
		return report.Print(out, c.Verbose)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
