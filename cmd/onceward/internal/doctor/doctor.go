// Package doctor tests what a store really does before money depends on it: whether its locks exclude, whether it
// keeps what it has acknowledged, whether its clock is right. A setting is trusted only where nothing can be tested.
//
// The doctor is safe on a store in production: it writes nothing into the store's tables, files and keys.
// It uses its own locks, notifications, files and keys, which end with its connections or are removed.
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

// Severity is the effect of a finding on the promises.
type Severity string

const (
	// Broken means that a promise does not hold on this store.
	Broken Severity = "broken"
	// Weak means that a promise holds only until something else goes wrong, such as a crash or a fail-over.
	Weak Severity = "weak"
	// Note means that no promise is affected: a store that has only notes is healthy.
	Note Severity = "note"
)

// Check is one test of a store.
type Check struct {
	// Name is the name of the check, as in postgres/advisory-locks.
	Name string `json:"name"`
	// Tries is the condition that must hold.
	Tries string `json:"tries"`
	// Why is what happens to users if the condition does not hold.
	Why string `json:"why"`
	// Promise is the numbers of the promises at stake in docs/spec.md (I1:
	// in docs/reliability.md), and in brackets the failure scenarios.
	Promise string `json:"promise"`
}

// Finding is one problem.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// What is what was seen, with the measured value.
	What string `json:"what"`
	// Why is why it matters.
	Why string `json:"why"`
	// Do is the advice.
	Do string `json:"do"`
	// Promise is the promises at stake.
	Promise string `json:"promise"`
}

// Status is the outcome of a check.
type Status string

const (
	StatusOK         Status = "ok"
	StatusFinding    Status = "finding"
	StatusNotChecked Status = "not checked"
)

// Result is the result of one check.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Seen is what was measured, or why the check was not made.
	Seen     string    `json:"seen,omitempty"`
	Findings []Finding `json:"findings,omitempty"`

	about Check
}

// saw records what was measured.
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

// errNotTried is the reason why a check was not made.
type errNotTried string

// Error returns the reason.
func (e errNotTried) Error() string { return string(e) }

// Report is the results of all checks.
type Report struct {
	// Store is the URL without its password.
	Store   string   `json:"store"`
	Results []Result `json:"results"`
}

// Findings returns all findings except notes.
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

// NotChecked returns the results of checks that could not be made.
func (r *Report) NotChecked() (results []Result) {
	for _, result := range r.Results {
		if result.Status == StatusNotChecked {
			results = append(results, result)
		}
	}
	return results
}

// Config configures the doctor.
type Config struct {
	// ListenURL is the URL at which the service listens, past a
	// pooler (postgres.WithListenURL). Default: the store's URL.
	ListenURL string
	// Replicas is the number of the service's processes. Default: 1.
	Replicas int
	// Metrics is the URL of the service's metrics. Default: they are not checked.
	Metrics string
	// Lease is the shortest lease of the service's routes. Default: 30 s.
	Lease time.Duration
	// Retention is the shortest retention of the service's routes. Default: 24 h.
	Retention time.Duration
	// Timeout limits the time of one check. Default: 20 s.
	Timeout time.Duration

	// slowWrite is the time from which a write counts as slow;
	// arrival is how long a message to another connection may take.
	slowWrite, arrival time.Duration
}

const (
	defaultSlowWrite = 250 * time.Millisecond
	defaultArrival   = 5 * time.Second
)

// ErrUsage is returned when the arguments are not valid, so that nothing was tested.
var ErrUsage = errors.New("nothing was tried")

// unusable returns the error for a URL that cannot be read.
func unusable(err error) error { return fmt.Errorf("%w: %w", ErrUsage, err) }

// unavailable returns the error for a store that cannot be reached, so that nothing was tested.
func unavailable(err error) error { return fmt.Errorf("%w: %w", store.ErrUnavailable, err) }

// Examine tests the store at a URL. It returns an error if it could not begin, or if it
// was interrupted. The error wraps [store.ErrUnavailable] if the store cannot be reached.
func Examine(ctx context.Context, storeURL string, c Config) (*Report, error) {
	at, err := storeurl.Parse(storeURL)
	if err != nil {
		return nil, unusable(err)
	}
	if _, err := url.Parse(c.Metrics); err != nil {
		return nil, unusable(errors.New("the URL of the metrics cannot be read")) // the error shows the password
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

// Checks returns all checks, in the order in which they are made.
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

// within limits the time of connecting to a store.
func within(ctx context.Context, limit time.Duration, meet func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return meet(ctx)
}

// trial is a check with its test, which examines a patient.
type trial[P any] struct {
	Check
	try func(ctx context.Context, patient P, r *Result) error
}

// examine makes all checks one after the other, so that one check does not disturb
// another. It ends early when it is interrupted. After a check has run out of time, the
// others get a tenth of the time, so that a store that no longer answers is reported soon.
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

// Redacted returns a URL without its secrets.
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
	// [url.Parse] cannot read a URL with several hosts.
	authority, path, _ := strings.Cut(rest, "/")
	path, _, _ = strings.Cut(path, "?")
	return scheme + "://" + authority[strings.LastIndex(authority, "@")+1:] + "/" + path
}
