package dynamodb

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/onceward/onceward/store"
)

// This file defines how a record is stored as an item. All items of the store are in one table with two binary keys.
// The first byte of the partition key is the kind of the item, and a hash follows: for a record, the hash of its ID, as
// logs show it. The ID itself is in the item and is compared.
const (
	attrPartition = "pk"
	attrSort      = "sk"
	// attrRecord begins with the name of the write that stored the item: see newWrite. Each write has a new name, and
	// is made on condition that the item still has the name of the write before it: a repeated request that finds its
	// own name has landed. The encoded ID and the encoded record follow. They share one attribute because each
	// attribute, however short, costs time at both ends.
	attrRecord = "rec"
	// attrBody and attrData are the body of the answer and the carried data, if they are too long for attrRecord: lists
	// then need not read them.
	attrBody, attrData = "body", "data"
	// attrFloor is the token of a record that was removed.
	attrFloor = "floor"
	// attrClaim is the claim of a transaction on the item.
	attrClaim = "claim"
	// attrCommit names the last write that committed a transaction or stored an outcome from outside. Later writes keep
	// it.
	attrCommit = "commit"
	// attrDueShard and attrDueAt are the keys of the index of due items: a part of the index, and a moment in it.
	attrDueShard, attrDueAt = "due", "when"
	// attrProvider is the key of the index of provider's ids.
	attrProvider = "provider"
	// attrExpires is when the service may remove the item, in seconds since 1970.
	attrExpires = "expires"
)

// These are the kinds of items.
const (
	kindMeta      = 'm'
	kindRecord    = 'r'
	kindLate      = 'l'
	kindAudit     = 'a'
	kindExecution = 'x'
	kindEvent     = 'e'
	kindEventName = 'n'
)

// These are the kinds of entries in the index of due items.
const (
	dueInProgress = 'p'
	dueUnknown    = 'u'
)

// maxItem is the size of the largest item that DynamoDB accepts.
const maxItem = 400 << 10

// ErrTooLarge is returned when a value does not fit into an item of 400 KB. It wraps [store.ErrInvalidEvent]: a retry
// fails too, and nothing was changed.
var ErrTooLarge = fmt.Errorf("%w: dynamodb: an item holds at most 400 KB", store.ErrInvalidEvent)

// item is an item as the client sends and receives it.
type item = map[string]types.AttributeValue

func binaryValue(b []byte) types.AttributeValue {
	if b == nil {
		b = []byte{} // the client would send null
	}
	return &types.AttributeValueMemberB{Value: b}
}

func textValue(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func numberValue(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func bytesOf(v types.AttributeValue) []byte {
	if b, ok := v.(*types.AttributeValueMemberB); ok {
		return b.Value
	}
	return nil
}

func textOf(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// stringValue returns the value of a text that may hold any bytes: a text that is not UTF-8 is stored as binary.
func stringValue(s string) types.AttributeValue {
	if utf8.ValidString(s) {
		return textValue(s)
	}
	return binaryValue([]byte(s))
}

func stringOf(v types.AttributeValue) string { return textOf(v) + string(bytesOf(v)) }

func numberOf(v types.AttributeValue) int64 {
	if n, ok := v.(*types.AttributeValueMemberN); ok {
		parsed, _ := strconv.ParseInt(n.Value, 10, 64) // the service stores nothing else as a number
		return parsed
	}
	return 0
}

// momentValue returns a number of microseconds since 1970 as a key of an index. It is binary because that takes less
// time than a number. Moments before 1970 become 1970.
func momentValue(us int64) types.AttributeValue {
	return binaryValue(binary.BigEndian.AppendUint64(nil, uint64(max(us, 0))))
}

func momentOf(v types.AttributeValue) int64 {
	if b := bytesOf(v); len(b) == 8 {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// place is where a record is stored.
type place struct {
	hash [16]byte
	// id is the ID of the record, if known.
	id    store.ID
	known bool
}

func placeOf(id store.ID) place { return place{hash: id.HashBytes(), id: id, known: true} }

// single is the sort key of an item that is alone in its partition.
var single = []byte{0}

// keyOf returns the key of an item of a kind.
func keyOf(kind byte, hash []byte, sort []byte) item {
	return item{
		attrPartition: binaryValue(append([]byte{kind}, hash...)),
		attrSort:      binaryValue(sort),
	}
}

func (p *place) key() item { return keyOf(kindRecord, p.hash[:], single) }

// claim is the right of a transaction to commit. It is stored in the item beside the record, which stays unchanged
// until the commit.
type claim struct {
	token int64
	until time.Time
}

// live reports whether a claim holds at a moment.
func (c *claim) live(now time.Time) bool { return c.token != 0 && now.Before(c.until) }

func (c *claim) appendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.token))
	return binary.BigEndian.AppendUint64(dst, uint64(c.until.UnixMicro()))
}

// value is the content of an item for an ID.
type value struct {
	store.Record
	// write names the write that stored the value; empty if there is no item.
	write string
	// floor is the token of a removed record: a recreated record must not have it (S7).
	floor int64
	claim claim
	// commit names the write that last committed a transaction or resolved an attempt: the caller of that write finds
	// that it has landed, even if there were other writes since. leavesName means that the write of this value is to be
	// named.
	commit     string
	leavesName bool
	// dueAt is the place in the index of due items, in microseconds.
	dueAt int64
}

// writeSize is the length of the name of a write.
const writeSize = 1 + 12

// newWrite returns a name that no other write has. It begins with the state that the write stores, by which a scan can
// filter.
func newWrite(state store.State) string {
	return string(append([]byte{byte(state)}, random(writeSize-1)...))
}

// random returns n unpredictable bytes.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

// slack is how long the service keeps an item after it has no effect any more. The clocks of the service and of the
// nodes may differ, and a record that is found after its expiry contains its token.
const slack = time.Hour

// expires returns when the service may remove the item, or the zero time for never: time alone never removes a record
// in progress or an unknown one (S2).
func (v *value) expires(now time.Time) (at time.Time) {
	switch v.State {
	case store.StateInProgress, store.StateUnknown:
		return time.Time{}
	case store.StateNone:
		at = now
	default:
		at = v.ExpiresAt
	}
	if v.claim.token != 0 && at.Before(v.claim.until) {
		at = v.claim.until
	}
	return at.Add(slack)
}

// dueKind returns the kind of entry that a record has in the index of due items, or zero for none.
func dueKind(state store.State) byte {
	switch state {
	case store.StateInProgress:
		return dueInProgress
	case store.StateUnknown:
		return dueUnknown
	default:
		return 0
	}
}

// encode returns the item of a value. The index of due items is a hint: it may have a record earlier than it is due, so
// that a heartbeat does not have to change the index.
func (s *Store) encode(at *place, v *value, now time.Time) item {
	it := at.key()
	head := v.Record
	if len(head.Response.Body) > longest {
		it[attrBody] = binaryValue(head.Response.Body)
		head.Response.Body = nil
	}
	if len(head.Data) > longest {
		it[attrData] = binaryValue(head.Data)
		head.Data = nil
	}
	it[attrRecord] = binaryValue(pack(v.write, at.id, &head))
	if v.floor != 0 {
		it[attrFloor] = numberValue(v.floor)
	}
	if v.claim.token != 0 {
		it[attrClaim] = binaryValue(v.claim.appendTo(nil))
	}
	if v.commit != "" {
		it[attrCommit] = binaryValue([]byte(v.commit))
	}
	if kind := dueKind(v.State); kind != 0 {
		v.dueAt = dueHint(v)
		it[attrDueShard] = binaryValue([]byte{kind, s.shardOf(at.hash[:])})
		it[attrDueAt] = momentValue(v.dueAt)
	}
	if v.ProviderID != "" {
		it[attrProvider] = binaryValue(hashOf([]byte(v.ProviderID)))
	}
	if expires := v.expires(now); !expires.IsZero() {
		it[attrExpires] = numberValue(expires.Unix())
	}
	return it
}

// longest is the largest body of an answer, and the largest carried data, that are stored in attrRecord.
const longest = 1 << 10

// pack joins the name of a write, an ID, and the record, if there is one.
func pack(write string, id store.ID, rec *store.Record) []byte {
	name := id.AppendBinary(nil)
	b := make([]byte, 0, len(write)+len(name)+len(rec.Response.Body)+len(rec.Data)+otherBytes)
	b = append(b, write...)
	b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	if rec.State == store.StateNone {
		return b
	}
	return rec.AppendBinary(b)
}

// otherBytes is room for most of an encoded record's content beside its body and data.
const otherBytes = 320

// unpack returns the parts that pack has joined. Parts that cannot be read are empty.
func unpack(b []byte) (write string, id store.ID, rec []byte, err error) {
	if len(b) < writeSize {
		return "", id, nil, errors.New("it does not say by which write it was stored")
	}
	write, b = string(b[:writeSize]), b[writeSize:]
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return write, id, nil, errors.New("its ID is damaged")
	}
	name := b[n : n+int(length)]
	id, err = store.ParseID(name)
	return write, id, b[n+len(name):], err
}

// dueHint returns the moment for a record in the index: the moment that the index already has, unless the record is due
// before that.
func dueHint(v *value) int64 {
	due := v.Due().UnixMicro()
	if v.State == store.StateInProgress && v.dueAt != 0 && v.dueAt <= due {
		return v.dueAt
	}
	return due
}

// decode reads an item. A version that is not known here, the record of another ID, or bytes that are not a record,
// give a [*store.UnreadableError]; the value then has the state and the ID, if they can be read.
func decode(at *place, it item) (*value, error) {
	v := &value{
		floor: numberOf(it[attrFloor]), dueAt: momentOf(it[attrDueAt]), commit: string(bytesOf(it[attrCommit])),
	}
	if len(it) == 0 {
		return v, nil
	}
	write, id, stored, err := unpack(bytesOf(it[attrRecord]))
	v.write = write
	switch {
	case err != nil:
	case id.HashBytes() != at.hash:
		err = errors.New("its ID is not the one that its key was made of")
	case at.known && id != at.id:
		err = errors.New("its place is taken by another key, whose hash is the same")
	case (stateOf(write) == store.StateNone) != (len(stored) == 0):
		err = errors.New("it has a state and no record, or a record and no state")
	}
	if err != nil {
		return unreadable(v, id, &store.UnreadableError{Reason: err.Error()})
	}
	if err := v.claim.decode(bytesOf(it[attrClaim])); err != nil {
		return unreadable(v, id, err)
	}
	if len(stored) == 0 {
		return v, nil
	}
	if v.Record, err = store.DecodeRecord(id, stored); err != nil {
		return unreadable(v, id, err)
	}
	if v.State != stateOf(write) {
		return unreadable(v, id, &store.UnreadableError{Reason: "its state is not that of the write that stored it"})
	}
	if data := bytesOf(it[attrData]); data != nil {
		v.Data = data
	}
	if body := bytesOf(it[attrBody]); body != nil {
		v.Response.Body = body
	}
	return v, nil
}

// summarise is decode for a list: it leaves out the content that a list does not have, even if it was read.
func summarise(at *place, it item) (*value, error) {
	v, err := decode(at, it)
	v.Response.Body, v.Data = nil, nil
	return v, err
}

// stateOf returns the state that a write of this name has stored.
func stateOf(write string) store.State {
	if write == "" {
		return store.StateNone
	}
	return store.State(write[0])
}

// unreadable returns the readable parts of an item that cannot be read.
func unreadable(v *value, id store.ID, err error) (*value, error) {
	v.Record = store.Record{ID: id, LastError: err.Error()}
	if state := stateOf(v.write); state <= store.StateExpired {
		v.State = state
	}
	return v, err
}

func (c *claim) decode(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) != 16 {
		return &store.UnreadableError{Reason: "the claim of a transaction is damaged"}
	}
	c.token = int64(binary.BigEndian.Uint64(b))
	c.until = time.UnixMicro(int64(binary.BigEndian.Uint64(b[8:]))).UTC()
	return nil
}

// sizeOf returns the size of an item as DynamoDB counts it, or a little more.
func sizeOf(it item) (size int) {
	for name, v := range it {
		size += len(name) + valueSize(v)
	}
	return size
}

const (
	// numberSize is the largest size of a number.
	numberSize = 21
	// nestingSize is the size of a list or map without its entries, and entrySize the additional size of each entry.
	nestingSize, entrySize = 3, 1
)

func valueSize(v types.AttributeValue) (size int) {
	switch v := v.(type) {
	case *types.AttributeValueMemberB:
		return len(v.Value)
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberN:
		return numberSize
	case *types.AttributeValueMemberL:
		for _, one := range v.Value {
			size += valueSize(one) + entrySize
		}
		return size + nestingSize
	case *types.AttributeValueMemberM:
		return sizeOf(v.Value) + len(v.Value)*entrySize + nestingSize
	case *types.AttributeValueMemberBS:
		for _, one := range v.Value {
			size += len(one)
		}
		return size
	case *types.AttributeValueMemberSS:
		for _, one := range v.Value {
			size += len(one)
		}
		return size
	case *types.AttributeValueMemberNS:
		return len(v.Value) * numberSize
	default:
		return 1
	}
}
