package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// drainMessages is how many messages each turn delivers.
const drainMessages = 30_000

// fillOutbox adds messages as the store does, all at once.
const fillOutbox = `INSERT INTO onceward_outbox (id, number, lane, due, created_at, origin_attempt, topic, aggregatetype, aggregateid, type,
		downstream_key, attributes, payload)
	SELECT gen_random_uuid(), nextval('onceward_outbox_number'), 1 + n %% %d, onceward_now(), onceward_now(), 0, $1, 'account', (n %% %d)::text,
		'payment.created', md5(n::text), '{}', $2
	FROM generate_series(1, $3::integer) n`

// measureDrain lets one worker process and then four deliver messages that no client has to wait for.
func (s *pgServer) measureDrain(ctx context.Context, o *options, r *report) error {
	if !o.wants("outbox-drain-per-second", "outbox-drain-four-workers-per-second", "outbox-four-workers") {
		return nil
	}
	res, order, ways := newResult(), o.order(), []string{drainOne, drainFour}
	for range o.rounds {
		for _, i := range order.Perm(len(ways)) {
			if err := s.drainTurn(ctx, res, ways[i]); err != nil {
				return err
			}
		}
	}
	t := &table{title: "Messages delivered a second, to a handler that does nothing", head: drainHead}
	for _, way := range ways {
		t.add(res.drainCells(way)...)
	}
	r.keep(t)
	r.judge("outbox-drain-per-second", res.rates.median(drainOne))
	r.judge("outbox-drain-four-workers-per-second", res.rates.median(drainFour))
	r.judge("outbox-four-workers", res.rates.ratio(drainFour, drainOne))
	return nil
}

// The ways to empty an outbox.
const (
	drainOne  = "1 worker process"
	drainFour = "4 worker processes"
)

var drainHead = []string{"workers", "messages a second", "middle half", "µs in the workers", "µs in the server"}

// drainCells are what a way reached.
func (res *result) drainCells(way string) []string {
	rates := res.rates[way]
	return []string{
		way, grouped(median(rates)), grouped(quantile(rates, 0.25)) + " to " + grouped(quantile(rates, 0.75)),
		fmt.Sprintf("%.0f", res.here.median(way)), fmt.Sprintf("%.0f", res.server.median(way)),
	}
}

// drainTurn fills an outbox and measures how long the workers of a way take until it is empty, and what of the
// processors they and the server take for it.
func (s *pgServer) drainTurn(ctx context.Context, res *result, way string) error {
	workers := map[string]int{drainOne: 1, drainFour: 4}[way]
	return s.visit(ctx, 1, durably, func(site *pgSite) error {
		store, err := postgres.New(ctx, site.pool, postgres.WithSchema(site.schema))
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		fill := fmt.Sprintf(fillOutbox, accounts, accounts)
		if _, err := site.pool.Exec(ctx, fill, outboxTopic, []byte(outboxPayload), drainMessages); err != nil {
			return err
		}
		if _, err := site.pool.Exec(ctx, `ANALYZE onceward_outbox`); err != nil {
			return err
		}
		run, err := s.runWorkers(ctx, workers, drainSettings{URL: s.url, Schema: site.schema})
		if err != nil {
			return err
		}
		res.rates.add(way, drainMessages/run.took.Seconds())
		res.here.add(way, run.workers.Seconds()*1e6/drainMessages)
		res.server.add(way, run.server.Seconds()*1e6/drainMessages)
		return site.expect(ctx, drainMessages, `SELECT count(*) FROM onceward_delivery WHERE state = 4 AND attempts > 0`)
	})
}

// drainVariable makes the program a worker process, with the settings that it holds.
const drainVariable = "ONCEWARD_BENCH_WORKER"

// drainSettings say where a worker process works.
type drainSettings struct{ URL, Schema string }

// drainRun is how long workers took until all had ended, and what of the processors they and the server took for it.
type drainRun struct{ took, workers, server time.Duration }

// runWorkers starts worker processes and lets them go at once.
func (s *pgServer) runWorkers(ctx context.Context, workers int, settings drainSettings) (run drainRun, err error) {
	encoded, err := json.Marshal(settings)
	if err != nil {
		return run, err
	}
	var all []*workerProcess
	defer func() {
		for _, p := range all {
			err = errors.Join(err, p.cmd.Wait())
		}
	}()
	for range workers {
		p, err := startWorker(ctx, string(encoded))
		if err != nil {
			return run, err
		}
		all = append(all, p)
	}
	before, err := s.processorTime(ctx)
	if err != nil {
		return run, err
	}
	start := time.Now()
	for _, p := range all {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			return run, err
		}
	}
	for _, p := range all {
		spent, err := p.hear("done")
		if err != nil {
			return run, err
		}
		run.workers += spent
	}
	run.took = time.Since(start)
	after, err := s.processorTime(ctx)
	run.server = after - before
	return run, err
}

// workerProcess is a worker that tells when it is ready and when it is done.
type workerProcess struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startWorker(ctx context.Context, settings string) (*workerProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), drainVariable+"="+settings)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &workerProcess{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	_, err = p.hear("ready")
	return p, err
}

// hear waits for a word, and for what the worker says that it has taken of the processors since the last one.
func (p *workerProcess) hear(word string) (spent time.Duration, err error) {
	p.out.Scan()
	said, rest, _ := strings.Cut(p.out.Text(), " ")
	if said != word {
		return 0, fmt.Errorf("a worker process said %q, want %q: %w", p.out.Text(), word, errors.Join(p.out.Err()))
	}
	return time.ParseDuration(rest)
}

// workOnce is what a worker process does: it waits for a line, delivers all that is there, and ends.
func workOnce(ctx context.Context, encoded string, in io.Reader, out io.Writer) error {
	var settings drainSettings
	if err := json.Unmarshal([]byte(encoded), &settings); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, settings.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.New(ctx, pool, postgres.WithSchema(settings.Schema))
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	nothing := func(context.Context, *outbox.Delivery) (outbox.Result, error) { return outbox.Result{}, nil }
	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{outboxTopic: {Handler: nothing}},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready 0s")
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	before, err := processorTimeHere()
	if err != nil {
		return err
	}
	if _, err := worker.RunOnce(ctx); err != nil {
		return err
	}
	after, err := processorTimeHere()
	fmt.Fprintln(out, "done", after-before)
	return err
}
