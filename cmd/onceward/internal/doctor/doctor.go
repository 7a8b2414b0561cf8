// Package doctor tries what a store really does before money depends on it: whether its locks exclude, whether it keeps
// what it has acknowledged, where its clock is. A setting is believed only where nothing can be tried.
//
// It is safe on a store in production: it writes nothing into the tables, files and keys of the store. It has locks,
// notifications, files and keys of its own, which end with its connections or are removed.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// Severity says what a finding means for the promises.
type Severity string

const (
	// Broken is for a promise that does not hold on this store.
	Broken Severity = "broken"
	// Weak is for a promise that holds until something else goes wrong, such as a crash or a fail-over.
	Weak Severity = "weak"
	// Note is worth knowing, and breaks nothing: a store with notes alone is healthy.
	Note Severity = "note"
)

// Check is one thing that is tried.
type Check struct {
	// Name is what the check is called, as in postgres/advisory-locks.
	Name string `json:"name"`
	// Tries is what must hold.
	Tries string `json:"tries"`
	// Why is what happens to users if it does not hold.
	Why string `json:"why"`
	// Promise is which promises are at stake, by their numbers in docs/spec.md (I1: in docs/reliability.md), and in
	// brackets the scenarios of failure.
	Promise string `json:"promise"`
}

// Finding is one thing that is not as it should be.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// What was seen, with the value that was measured.
	What string `json:"what"`
	// Why it matters.
	Why string `json:"why"`
	// Do is what to do about it.
	Do string `json:"do"`
	// Promise is which promises are at stake.
	Promise string `json:"promise"`
}

// Status is what came of a check.
type Status string

const (
	StatusOK         Status = "ok"
	StatusFinding    Status = "finding"
	StatusNotChecked Status = "not checked"
)

// Result is what came of one check.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Seen is what was measured, or why it was not checked.
	Seen     string    `json:"seen,omitempty"`
	Findings []Finding `json:"findings,omitempty"`

	about Check
}

// saw notes what was measured.
func (r *Result) saw(format string, args ...any) {
	if r.Seen != "" {
		r.Seen += "; "
	}
	r.Seen += fmt.Sprintf(format, args...)
}

// find adds a finding: what was seen, and what to do about it.
func (r *Result) find(severity Severity, do, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{
		Check: r.Check, Severity: severity, What: fmt.Sprintf(format, args...), Do: do,
		Why: r.about.Why, Promise: r.about.Promise,
	})
}

// errNotTried is why a check says nothing about the store.
type errNotTried string

// Error implements error.
func (e errNotTried) Error() string { return string(e) }

// Report is what came of all checks.
type Report struct {
	// Store is the URL without its password.
	Store   string   `json:"store"`
	Results []Result `json:"results"`
}

// Findings are all findings but notes.
func (r *Report) Findings() (found []Finding) {
	for _, result := range r.Results {
		for _, finding := range result.Findings {
			if finding.Severity != Note {
				found = append(found, finding)
			}
		}
	}
	return found
}

// NotChecked are the results of checks that could not be made.
func (r *Report) NotChecked() (results []Result) {
	for _, result := range r.Results {
		if result.Status == StatusNotChecked {
			results = append(results, result)
		}
	}
	return results
}

// Config says how to look.
type Config struct {
	// ListenURL is where the service listens, past a pooler (postgres.WithListenURL). Default: like all else.
	ListenURL string
	// Replicas is how many processes of the service there are. Default: 1.
	Replicas int
	// Metrics is where the service shows its metrics. Default: they are not looked at.
	Metrics string
	// Lease is the shortest of the service's routes. Default: 30 s.
	Lease time.Duration
	// Retention is the shortest of the service's routes. Default: 24 h.
	Retention time.Duration
	// Timeout bounds how long one check takes. Default: 20 s.
	Timeout time.Duration

	// slowWrite is from when on a write is slow, arrival how long a message to another connection may take.
	slowWrite, arrival time.Duration
}

const (
	defaultSlowWrite = 250 * time.Millisecond
	defaultArrival   = 5 * time.Second
)

// ErrUsage is returned when what was asked for cannot be meant, so that nothing was tried.
var ErrUsage = errors.New("nothing was tried")

// unusable is the error of a URL that cannot be read.
func unusable(err error) error { return fmt.Errorf("%w: %w", ErrUsage, err) }

// unavailable is the error of a store that cannot be reached, so that nothing was tried.
func unavailable(err error) error { return fmt.Errorf("%w: %w", store.ErrUnavailable, err) }

// Examine tries what the store at a URL does. It returns an error if it could not begin, which wraps
// [store.ErrUnavailable] if the store cannot be reached, or if it was interrupted.
func Examine(ctx context.Context, storeURL string, c Config) (*Report, error) {
	at, err := storeurl.Parse(storeURL)
	if err != nil {
		return nil, unusable(err)
	}
	if _, err := url.Parse(c.Metrics); err != nil {
		return nil, unusable(errors.New("the URL of the metrics cannot be read")) // the error shows its password
	}
	c.Timeout = cmp.Or(c.Timeout, 20*time.Second)
	c.slowWrite, c.arrival = cmp.Or(c.slowWrite, defaultSlowWrite), cmp.Or(c.arrival, defaultArrival)
	report := &Report{Store: Redacted(storeURL)}
	switch at.Engine {
	case storeurl.Postgres:
		report.Results, err = examinePostgres(ctx, &at, c)
	case storeurl.SQLite:
		report.Results, err = examineSQLite(ctx, at.URL, c)
	case storeurl.MySQL:
		report.Results, err = examineMySQL(ctx, storeURL, &at, c)
	case storeurl.Redis:
		report.Results, err = examineRedis(ctx, at, c)
	case storeurl.DynamoDB:
		report.Results, err = examineDynamoDB(ctx, &at, c)
	default:
		err = unusable(fmt.Errorf("there are no checks for %s", at.Engine))
	}
	if err == nil && c.Metrics != "" {
		report.Results = append(report.Results, examineMetrics(ctx, c)...)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return report, err
}

// Checks are all checks that there are, in the order in which they are made.
func Checks() (all []Check) {
	for _, t := range postgresTrials {
		all = append(all, t.Check)
	}
	for _, t := range mysqlTrials {
		all = append(all, t.Check)
	}
	for _, t := range sqliteTrials {
		all = append(all, t.Check)
	}
	for _, t := range redisTrials {
		all = append(all, t.Check)
	}
	for _, t := range dynamoTrials {
		all = append(all, t.Check)
	}
	for _, t := range metricsTrials {
		all = append(all, t.Check)
	}
	return all
}

// within bounds how long it takes to reach a store.
func within(ctx context.Context, limit time.Duration, meet func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return meet(ctx)
}

// trial is a check and how it is made on a patient.
type trial[P any] struct {
	Check
	try func(ctx context.Context, patient P, r *Result) error
}

// examine makes all checks, one after the other: what one does must not be taken for what another looks for. It ends
// early when it is interrupted. Once a check has run out of time the others have a tenth of it: of a store that does
// not answer any more, it is soon said.
func examine[P any](ctx context.Context, limit time.Duration, patient P, trials []trial[P]) (results []Result) {
	left := limit
	for _, t := range trials {
		if ctx.Err() != nil {
			return results
		}
		r := Result{Check: t.Name, Status: StatusOK, about: t.Check}
		limited, cancel := context.WithTimeout(ctx, left)
		err := t.try(limited, patient, &r)
		if err != nil && limited.Err() != nil {
			err = fmt.Errorf("not answered within %s: %w", left, err)
			left = limit / 10
		}
		cancel()
		switch {
		case err != nil && onlyNotes(r.Findings):
			r.Status = StatusNotChecked
		case len(r.Findings) > 0:
			r.Status = StatusFinding
		}
		if err != nil {
			r.saw("%s", strings.Join(strings.Fields(err.Error()), " "))
		}
		results = append(results, r)
	}
	return results
}

// Redacted is a URL without what is secret in it.
func Redacted(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return text
	}
	if u, err := url.Parse(text); err == nil && u.Opaque == "" {
		q := u.Query()
		for _, name := range []string{"password", "sentinel_password", "sslpassword"} {
			if q.Has(name) {
				q.Set(name, "xxxxx")
			}
		}
		if q.Has("front") {
			q.Set("front", Redacted(q.Get("front")))
		}
		u.RawQuery = q.Encode()
		return u.Redacted()
	}
	// A URL with several hosts is none that can be parsed.
	authority, path, _ := strings.Cut(rest, "/")
	path, _, _ = strings.Cut(path, "?")
	return scheme + "://" + authority[strings.LastIndex(authority, "@")+1:] + "/" + path
}
