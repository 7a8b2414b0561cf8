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
	rates := make(series)
	one, four := "1 worker process", "4 worker processes"
	for range o.rounds {
		for name, workers := range map[string]int{one: 1, four: 4} {
			rate, err := s.drainOnce(ctx, workers)
			if err != nil {
				return err
			}
			rates.add(name, rate)
		}
	}
	t := &table{
		title: "Messages delivered a second, to a handler that does nothing",
		head:  []string{"workers", "messages a second"},
	}
	t.add(one, grouped(rates.median(one)))
	t.add(four, grouped(rates.median(four)))
	r.keep(t)
	r.judge("outbox-drain-per-second", rates.median(one))
	r.judge("outbox-drain-four-workers-per-second", rates.median(four))
	r.judge("outbox-four-workers", rates.ratio(four, one))
	return nil
}

// drainOnce fills an outbox and measures how long workers take until it is empty.
func (s *pgServer) drainOnce(ctx context.Context, workers int) (rate float64, err error) {
	err = s.visit(ctx, 1, durably, func(site *pgSite) error {
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
		took, err := runWorkers(ctx, workers, drainSettings{URL: s.url, Schema: site.schema})
		rate = drainMessages / took.Seconds()
		return errors.Join(err, site.expect(ctx, drainMessages,
			`SELECT count(*) FROM onceward_delivery WHERE state = 4 AND attempts > 0`))
	})
	return rate, err
}

// drainVariable makes the program a worker process, with the settings that it holds.
const drainVariable = "ONCEWARD_BENCH_WORKER"

// drainSettings say where a worker process works.
type drainSettings struct{ URL, Schema string }

// runWorkers starts worker processes, lets them go at once, and returns how long they took until all had ended.
func runWorkers(ctx context.Context, workers int, settings drainSettings) (took time.Duration, err error) {
	encoded, err := json.Marshal(settings)
	if err != nil {
		return 0, err
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
			return 0, err
		}
		all = append(all, p)
	}
	start := time.Now()
	for _, p := range all {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			return 0, err
		}
	}
	for _, p := range all {
		if err := p.hear("done"); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
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
	return p, p.hear("ready")
}

func (p *workerProcess) hear(word string) error {
	if !p.out.Scan() || p.out.Text() != word {
		return fmt.Errorf("a worker process said %q, want %q: %w", p.out.Text(), word, errors.Join(p.out.Err()))
	}
	return nil
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
	fmt.Fprintln(out, "ready")
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	if _, err := worker.RunOnce(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "done")
	return nil
}
