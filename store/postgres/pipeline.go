package postgres

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
)

// statement is a text with the name under which connections prepare it.
type statement struct {
	name string
	text string
}

// pipeline is one round trip of several statements. It uses the protocol directly, because the columns of the results
// are known: a driver asks the server to describe every result, which takes a fifth of the time of such a statement.
type pipeline struct {
	conn *pgx.Conn
	// unnamed means that the connection cannot keep prepared statements, as behind some poolers.
	unnamed bool
	count   int
	// opens means that the round trip leaves a transaction open.
	opens bool
	// until is the context whose end cuts the round trip off, or nil if nothing cuts it off.
	until context.Context
	// warned means that the server sent a warning, such as that a commit did not wait for its standbys.
	warned bool
	// tag is the memory of the last statement's tag, and numbers is the memory of parameters. They save allocations.
	tag     [maxTag]byte
	numbers [128]byte
	used    int
}

// stateWarning is the SQL state of warnings that have no state of their own.
const stateWarning = "01000"

// maxTag is longer than the tag of any statement of this package.
const maxTag = 32

var (
	binaryFormat = []int16{1}
	execute      = &pgproto3.Execute{}
	endOfTrip    = &pgproto3.Sync{}
)

// known is the value that marks a connection, such as one that has prepared statements.
type known struct{}

// prepare prepares statements on the connection, all of them in one round trip. Later calls make no round trip: the
// name of the last statement marks that all of them are prepared. A caller that leaves does not cut it off.
func (p *pipeline) prepare(ctx context.Context, deadline time.Time, statements ...*statement) error {
	data, last := p.conn.PgConn().CustomData(), statements[len(statements)-1].name
	if p.unnamed || data[last] != nil {
		return nil
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	trip := p.conn.PgConn().StartPipeline(ctx)
	for _, s := range statements {
		trip.SendDeallocate(s.name) // it may be left from an attempt that failed at another statement
		trip.SendPrepare(s.name, s.text, nil)
	}
	err := trip.Sync()
	for err == nil {
		var reply any
		if reply, err = trip.GetResults(); reply == nil {
			break
		}
	}
	if err := errors.Join(err, trip.Close()); err != nil {
		return err
	}
	data[last] = known{}
	return nil
}

// discarded reports whether a round trip failed, without any effect, because statements that were prepared on the
// connection have been discarded, as by a hook of its pool. It then removes the mark of the last statement, so that
// prepare prepares all of them again.
func (p *pipeline) discarded(err error, last *statement) bool {
	if sqlState(err) != stateNoSuchStatement || p.conn.IsClosed() || p.conn.PgConn().TxStatus() != statusIdle {
		return false
	}
	delete(p.conn.PgConn().CustomData(), last.name)
	return true
}

// add puts a statement into the round trip, with its parameters in the binary format.
func (p *pipeline) add(s *statement, parameters ...[]byte) {
	frontend := p.conn.PgConn().Frontend()
	bind := pgproto3.Bind{
		PreparedStatement: s.name, ParameterFormatCodes: binaryFormat, Parameters: parameters,
		ResultFormatCodes: binaryFormat,
	}
	if p.unnamed {
		frontend.SendParse(&pgproto3.Parse{Query: s.text})
		bind.PreparedStatement = ""
	}
	frontend.SendBind(&bind)
	frontend.SendExecute(execute)
	p.count++
}

// errForeignReply is the error of a reply that belongs to something else.
var errForeignReply = errors.New("the server answered something else: a pooler in between mixes up connections")

// run makes the round trip. It calls read for each row, with the number of the row's statement; the memory of the
// values is reused after read has returned. It returns the tag of the last statement. After a network error, or replies
// that do not belong to the statements, the connection is closed. After an error of the server it can still be used.
func (p *pipeline) run(deadline time.Time, read func(statement int, values [][]byte) error) (tag []byte, err error) {
	pg := p.conn.PgConn()
	if pg.IsClosed() {
		return nil, errors.New("the connection is closed")
	}
	if err := pg.Conn().SetDeadline(deadline); err != nil {
		return nil, p.broken(err)
	}
	stop := func() bool { return true }
	if p.until != nil {
		stop = context.AfterFunc(p.until, func() { _ = pg.Conn().SetDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	pg.Frontend().SendSync(endOfTrip)
	if err := pg.Frontend().Flush(); err != nil {
		return nil, p.broken(err)
	}
	bound, statement := 0, 0
	for {
		message, receiveErr := pg.ReceiveMessage(context.Background())
		if receiveErr != nil {
			return tag, p.broken(receiveErr)
		}
		switch m := message.(type) {
		case *pgproto3.BindComplete:
			if bound++; bound > p.count {
				return tag, p.broken(errForeignReply)
			}
		case *pgproto3.DataRow:
			if statement >= bound {
				return tag, p.broken(errForeignReply)
			}
			if err == nil {
				err = read(statement, m.Values)
			}
		case *pgproto3.CommandComplete:
			if statement >= bound {
				return tag, p.broken(errForeignReply)
			}
			tag = append(p.tag[:0], m.CommandTag...)
			statement++
		case *pgproto3.NoticeResponse:
			p.warned = p.warned || m.Code == stateWarning
		case *pgproto3.ErrorResponse:
			if !errors.Is(err, errForeignReply) {
				err = pgconn.ErrorResponseToPgError(m)
			}
		case *pgproto3.ReadyForQuery:
			if !stop() {
				return tag, p.broken(p.until.Err()) // the end of until may still set the deadline
			}
			if resetErr := pg.Conn().SetDeadline(time.Time{}); resetErr != nil {
				return tag, p.broken(resetErr)
			}
			if err == nil && (statement != p.count || p.opens != (m.TxStatus == statusInTx)) {
				err = fmt.Errorf("%w: %d of %d replies, state %c", errForeignReply, statement, p.count, m.TxStatus)
			}
			if errors.Is(err, errForeignReply) {
				err = p.broken(err)
			}
			return tag, err
		}
	}
}

// broken closes a connection whose next reply cannot be predicted, and returns the error.
func (p *pipeline) broken(err error) error {
	if p.until != nil && p.until.Err() != nil && !errors.Is(err, p.until.Err()) {
		err = fmt.Errorf("%w: %w", p.until.Err(), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx)
	return err
}

// number returns memory for a parameter of fixed size.
func (p *pipeline) number(size int) []byte {
	if p.used+size > len(p.numbers) {
		return make([]byte, size)
	}
	p.used += size
	return p.numbers[p.used-size : p.used : p.used]
}

// int16, int64, mark, uuid and optional return parameters in the binary format.
func (p *pipeline) int16(v int16) []byte {
	b := p.number(2)
	binary.BigEndian.PutUint16(b, uint16(v))
	return b
}

func (p *pipeline) int64(v int64) []byte {
	b := p.number(8)
	binary.BigEndian.PutUint64(b, uint64(v))
	return b
}

// mark, uuid and optional return nil, which is NULL, for false, no UUID and zero.
func (p *pipeline) mark(v mark) []byte {
	if !v {
		return nil
	}
	b := p.number(1)
	b[0] = 1
	return b
}

func (p *pipeline) uuid(v *pgtype.UUID) []byte {
	if !v.Valid {
		return nil
	}
	return v.Bytes[:]
}

func (p *pipeline) optional(v optional) []byte {
	if v == 0 {
		return nil
	}
	return p.int64(int64(v))
}

// row returns the id and the columns of a record.
func (p *pipeline) row(r *row) [][]byte {
	fields := r.fields()
	all := append(make([][]byte, 0, len(fields)+4), r.id[:])
	for _, field := range fields {
		switch f := field.(type) {
		case *int64:
			all = append(all, p.int64(*f))
		case *optional:
			all = append(all, p.optional(*f))
		case *int16:
			all = append(all, p.int16(*f))
		case *mark:
			all = append(all, p.mark(*f))
		case *pgtype.UUID:
			all = append(all, p.uuid(f))
		case *[]byte:
			all = append(all, *f)
		}
	}
	return all
}

// statements holds the statements of this package with the names of the tables. The statements with a name are
// prepared on their connections.
type statements struct {
	moment, lockRecord, insertRecord, updateRecord, deleteRecord, get statement

	boundIdle, claim, claimBounded, number, lookUpAndDraw, insertAnswer, replaceAnswer, commit, rollback, advance statement
	awaitLock, askFate, lookUp                                                                                    statement

	begins map[sql.IsolationLevel]*statement

	batch []*statement // indexed by shape
	add   addStatements
}

func prepareStatements(n names, channel string) statements {
	// Several stores may share a connection, and so may several versions of the program behind a pooler, so a name
	// stands for one text of one store. The server uses the first 63 characters of a name, which include the hash.
	named := func(name, text string) statement {
		text = n.render(text)
		return statement{name: channel + "_" + shortHash(text) + "_" + name, text: text}
	}
	unnamed := func(text string) statement { return statement{text: n.render(text)} }
	all := statements{
		moment: unnamed(selectMoment), lockRecord: unnamed(lockRecord), insertRecord: unnamed(insertRecord),
		updateRecord: unnamed(updateRecord), deleteRecord: unnamed(deleteRecord), get: unnamed(getRecord),

		begins: prepareBegins(named), claim: named("claim", claim), claimBounded: named("bounded", claimBounded),
		boundIdle: named("idle", boundIdle), lookUpAndDraw: named("lookup", lookUpAndDraw), lookUp: named("ask", lookUp),
		insertAnswer: named("insert", insertAnswer), replaceAnswer: named("replace", replaceAnswer),
		commit: named("commit", `COMMIT`), awaitLock: named("await", awaitLock),
		askFate: named("fate", askFate), advance: named("advance", advance), number: named("number", selectTransaction),
		rollback: named("rollback", `ROLLBACK`),
	}
	all.add = prepareAdd(channel, named)
	for k, text := range batchStatements {
		one := named("batch_"+strconv.Itoa(k), text)
		all.batch = append(all.batch, &one)
	}
	return all
}

// transactional returns the statements that are prepared on a connection of handlers before it begins a transaction.
// The last of them marks that all are prepared.
func (s *statements) transactional() []*statement {
	return []*statement{
		s.begins[sql.LevelDefault], s.begins[sql.LevelReadCommitted], s.begins[sql.LevelRepeatableRead],
		s.begins[sql.LevelSerializable], &s.boundIdle, &s.number, &s.rollback, &s.claim, &s.claimBounded, &s.lookUpAndDraw,
		&s.insertAnswer, &s.commit,
	}
}

// prepareBegins returns the statements that begin a transaction at each level. They ask for READ WRITE, because a
// connection of handlers may be read-only by default.
func prepareBegins(named func(name, text string) statement) map[sql.IsolationLevel]*statement {
	texts := map[sql.IsolationLevel]string{
		sql.LevelDefault:        `BEGIN READ WRITE`,
		sql.LevelReadCommitted:  begin,
		sql.LevelRepeatableRead: `BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE`,
		sql.LevelSerializable:   `BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE`,
	}
	begins := make(map[sql.IsolationLevel]*statement)
	for level, text := range texts {
		one := named("begin_"+strconv.Itoa(int(level)), text)
		begins[level] = &one
	}
	return begins
}

// values reads the columns of a result in the binary format, which is what pgx asks for.
type values struct {
	raw [][]byte
	err error
}

// column returns a column, or nil if the row does not have it: a row of a foreign reply may be shorter.
func (v *values) column(n int) []byte {
	if n < len(v.raw) {
		return v.raw[n]
	}
	v.err = fmt.Errorf("%w: a row has %d columns", errForeignReply, len(v.raw))
	return nil
}

func (v *values) fixed(column, size int) []byte {
	b := v.column(column)
	if b != nil && len(b) != size && v.err == nil {
		v.err = fmt.Errorf("%w: column %d has %d bytes instead of %d", errForeignReply, column, len(b), size)
	}
	if len(b) != size {
		return make([]byte, size)
	}
	return b
}

func (v *values) int16(column int) int16 { return int16(binary.BigEndian.Uint16(v.fixed(column, 2))) }

func (v *values) int64(column int) int64 { return int64(binary.BigEndian.Uint64(v.fixed(column, 8))) }
func (v *values) bool(column int) bool   { return v.fixed(column, 1)[0] != 0 }

// bytes returns a copy of a column, because the connection reuses the memory. The copy is never nil.
func (v *values) bytes(column int) []byte { return append([]byte{}, v.column(column)...) }

// row reads the columns of a record, from the given one on.
func (v *values) row(r *row, from int) {
	fields, size := r.fields(), 0
	for i := range fields {
		size += len(v.column(from + i))
	}
	texts := make([]byte, 0, size) // one copy, because the connection reuses the memory
	for i, field := range fields {
		n := from + i
		switch f := field.(type) {
		case *int64:
			*f = v.int64(n)
		case *optional:
			*f = 0
			if v.column(n) != nil {
				*f = optional(v.int64(n))
			}
		case *int16:
			*f = v.int16(n)
		case *mark:
			*f = v.column(n) != nil && mark(v.bool(n))
		case *pgtype.UUID:
			*f = pgtype.UUID{}
			if v.column(n) != nil {
				*f = pgtype.UUID{Bytes: [16]byte(v.fixed(n, 16)), Valid: true}
			}
		case *[]byte:
			*f = nil
			if text := v.column(n); text != nil {
				texts = append(texts, text...)
				*f = texts[len(texts)-len(text) : len(texts) : len(texts)]
			}
		}
	}
}

// postgresEpoch is the beginning of the year 2000, from which the server counts, in microseconds of Unix time.
const postgresEpoch = 946684800000000

// fromPostgresTime reads a timestamp of the binary format.
func fromPostgresTime(us int64) time.Time { return fromMicros(us + postgresEpoch) }
