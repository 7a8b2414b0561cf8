package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/onceward/onceward/store"
)

// Option configures a store.
type Option func(*options)

type options struct {
	log         *slog.Logger
	shards      int
	manual      bool
	readOnly    bool
	globalTable bool
	transport   http.RoundTripper
}

// WithLogger sets the logger. Default: [slog.Default].
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithManualMigration leaves the table as it is: [Open] fails if it does not exist. Default: the table is created if it
// does not exist.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// WithReadOnly opens the store for reading only: its writes return [store.ErrReadOnly]. It leaves the table as it is.
// Default: the store is opened for writing.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// WithShards sets into how many parts the index of due items is divided, from 1 to 256. Each part takes about 500 new
// operations a second. The number is stored in the table, and only grows: a smaller number is ignored. Default: 16.
func WithShards(n int) Option { return func(o *options) { o.shards = n } }

// WithGlobalTable accepts a table that has replicas in other regions without strong consistency between them. There a
// condition holds within one region only, and of two writes to one key in two regions the last one wins: an operation
// whose key arrives in both regions is executed twice. Use it only if each key is served by one region at a time, also
// during a fail-over. Default: such a table is refused.
func WithGlobalTable() Option { return func(o *options) { o.globalTable = true } }

// WithTransport sends the requests of a store that is opened by its URL through a transport, such as a transport that
// counts or disturbs them in a test. [New] ignores it. Default: the store's own transport.
func WithTransport(t http.RoundTripper) Option { return func(o *options) { o.transport = t } }

const (
	defaultShards = 16
	maxShards     = 256
	// maxAttempts is how often the client that Open creates sends a request in all: the guard retries what is worth
	// retrying.
	maxAttempts = 3
	// maxBackoff is the longest pause between these attempts.
	maxBackoff = time.Second
	// attemptTimeout is how long one of them may take: a lost answer is not waited for until the caller's deadline.
	attemptTimeout = 3 * time.Second
	dialTimeout    = 2 * time.Second
	keepAlive      = 30 * time.Second
	// idleConnections is how many connections are kept.
	idleConnections = 256
)

func (o *options) check() error {
	if o.shards < 1 || o.shards > maxShards {
		return fmt.Errorf("dynamodb: WithShards(%d): the index of what is due has 1 to %d parts", o.shards, maxShards)
	}
	return nil
}

func newOptions(with []Option) (options, error) {
	o := options{log: slog.Default(), shards: defaultShards}
	for _, option := range with {
		option(&o)
	}
	return o, o.check()
}

// Open connects to the table of a URL:
//
//	dynamodb://TABLE?region=eu-central-1
//	dynamodb://TABLE?region=eu-central-1&endpoint=http://127.0.0.1:8000
//	dynamodb://TABLE?region=eu-central-1&profile=NAME
//
// Region and credentials come from the environment, the shared files or the role of the machine, as for every program
// that uses the AWS SDK, unless the URL sets them. With an endpoint on loopback and no credentials, as for an emulator,
// it uses placeholder credentials. See [New] for what it does with the table.
func Open(ctx context.Context, url string, with ...Option) (*Store, error) {
	o, err := newOptions(with)
	if err != nil {
		return nil, err
	}
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	client, own, err := where.client(ctx, o.transport)
	if err != nil {
		return nil, err
	}
	return open(ctx, client, where.table, own, &o)
}

// New uses a table through a client of the caller, and does not change the client's retryer. It creates the table if it
// does not exist (see [Table]), unless [WithManualMigration] or [WithReadOnly] is set. It refuses a table with other
// keys or without the indexes, a table of a newer program, and a global table (see [WithGlobalTable]). It logs a
// warning if expired items are not removed, or if the clock of this node is wrong.
func New(ctx context.Context, client *ddb.Client, table string, with ...Option) (*Store, error) {
	o, err := newOptions(with)
	if err != nil {
		return nil, err
	}
	return open(ctx, client, table, nil, &o)
}

func open(ctx context.Context, client *ddb.Client, table string, own *http.Client, o *options) (*Store, error) {
	s := &Store{
		client: client, table: table, readOnly: o.readOnly, log: o.log, own: own,
		clock: newClock(), recent: newRecent(),
		held:    held{values: make(map[store.ID]*value)},
		flights: flights{count: make(map[store.ID]int)},
	}
	s.shards.Store(int32(o.shards))
	s.Apply = s.change
	s.watcher = newWatcher(s)
	if err := s.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	switch skew, known := s.clock.skew(); {
	case !known:
		s.log.WarnContext(ctx, "dynamodb: the service does not tell its time: this node's clock decides", "table", table)
	case skew.Abs() >= notableSkew:
		s.log.WarnContext(ctx, "dynamodb: the clock of this node is wrong: the store counts by the service's",
			"table", table, "off_by", -skew)
	}
	return s, nil
}

// Client returns a client like the one that [Open] creates, for handlers and tools that use the tables of the same URL.
func Client(ctx context.Context, url string) (*ddb.Client, error) {
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	client, _, err := where.client(ctx, nil)
	return client, err
}

// client creates a client, and returns it with its HTTP client. The client sends a request up to three times in all,
// with pauses of up to a second, within the deadline of its caller.
func (l *location) client(ctx context.Context, transport http.RoundTripper) (*ddb.Client, *http.Client, error) {
	load := []func(*config.LoadOptions) error{
		// The SDK adds the authorities of AWS_CA_BUNDLE to it.
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(attemptTimeout).WithTransportOptions(pooled)),
		config.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxAttempts, o.MaxBackoff = maxAttempts, maxBackoff
			})
		}),
	}
	if l.region != "" {
		load = append(load, config.WithRegion(l.region))
	}
	if l.profile != "" {
		load = append(load, config.WithSharedConfigProfile(l.profile))
	}
	if l.emulated() {
		load = append(load, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider("local", "local", "")))
	}
	loaded, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, nil, fmt.Errorf("dynamodb: read the configuration of the AWS SDK: %w", err)
	}
	if loaded.Region == "" {
		return nil, nil, errors.New("dynamodb: no region is configured: add ?region=… to the URL, or set AWS_REGION")
	}
	own := &http.Client{Transport: transport, Timeout: attemptTimeout}
	if made, ok := loaded.HTTPClient.(*awshttp.BuildableClient); ok && transport == nil {
		own.Transport = made.GetTransport()
	}
	return ddb.NewFromConfig(loaded, func(o *ddb.Options) {
		o.HTTPClient = own
		if l.endpoint != "" {
			o.BaseEndpoint = aws.String(l.endpoint)
		}
	}), own, nil
}

// pooled keeps connections for many callers: with the default limit, connections would be opened and closed all the
// time under load.
func pooled(t *http.Transport) {
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.TLSHandshakeTimeout = idleConnections, idleConnections, dialTimeout
	t.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
}
