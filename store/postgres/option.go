package postgres

import "log/slog"

// Option changes a store that is being opened.
type Option func(*options)

type options struct {
	schema     string
	prefix     string
	manual     bool
	strict     bool
	individual bool
	lanes      int
	// lockTimeout is how long a record that somebody has locked holds up its batch.
	lockTimeout string
	listenURL   string
	logger      *slog.Logger
}

func defaults() options {
	return options{prefix: defaultPrefix, lanes: defaultLanes, lockTimeout: "2s", logger: slog.Default()}
}

// How many statements of the batcher may be on the wire at once.
const (
	defaultLanes = 2
	maxLanes     = 1000
)

// WithSchema puts the tables into a schema, which must exist. Default: the first of the user's search_path that exists.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithTablePrefix is what the names of tables and functions begin with. Default: onceward_.
func WithTablePrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithManualMigration leaves the tables as they are when the store is opened: call [Store.Migrate], or apply [Migrations]
// with a tool of your own. Default: opening brings them up to date.
func WithManualMigration() Option { return func(o *options) { o.manual = true } }

// WithStrictDurability refuses to open a store on a server that can lose commits it has acknowledged. Default: a warning.
func WithStrictDurability() Option { return func(o *options) { o.strict = true } }

// WithLanes is how many statements of reserved mode may be on the wire at once; what arrives while all are busy is gathered
// into the next. Each takes a connection; more than 1,000 are refused. Default: 2.
func WithLanes(n int) Option { return func(o *options) { o.lanes = max(n, 1) } }

// WithoutBatching sends each call of reserved mode as a statement of its own, on as many connections as the pool has. It is
// there to compare with.
func WithoutBatching() Option { return func(o *options) { o.individual = true } }

// WithListenURL is where to listen for notifications, past a pooler in transaction mode, through which they do not come.
// Default: like all other connections.
func WithListenURL(url string) Option { return func(o *options) { o.listenURL = url } }

// WithLogger is where warnings go. Default: slog.Default().
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }
