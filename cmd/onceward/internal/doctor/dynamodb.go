package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	ddb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/onceward/onceward/store"
	dynamostore "github.com/onceward/onceward/store/dynamodb"
	"github.com/onceward/onceward/storeurl"
)

var dynamoTrials = []trial[*dynamo]{
	{Check{
		"dynamodb/table", "The table is active, and has the store's keys and indexes.",
		"Without the index of what is due, lost work is not found.", "S1, B1, I13",
	}, tryDynamoTable},
	{Check{
		"dynamodb/schema", "This program knows the table's version.",
		"Otherwise the program refuses the table.", "S8 [32]",
	}, tryDynamoSchema},
	{Check{
		"dynamodb/conditions",
		"Of many conditional puts of one item at once, one succeeds, and the others get what is there.",
		"Two owners of one key both execute.", "S1, I1 [48]",
	}, tryDynamoConditions},
	{Check{
		"dynamodb/consistency", "A consistent read finds what was just written.",
		"An operation that a look-up misses is executed again.", "S1, I1 [13]",
	}, tryDynamoConsistency},
	{Check{
		"dynamodb/transactions",
		"A transaction whose condition fails is wholly undone; one sent twice with the same token is done once.",
		"Otherwise a handler's writes could exist without its answer, or twice.", "E1, I1 [9, 10]",
	}, tryDynamoTransactions},
	{Check{
		"dynamodb/regions", "One region, or strong consistency between regions.",
		"In a global table the last writer wins: two regions execute the same key.", "I1, S1 [48]",
	}, tryDynamoRegions},
	{Check{
		"dynamodb/expiry", "The time to live is on, with attribute `expires`.",
		"Expired items stay: they cost money, and slow down scans.", "B2, L2",
	}, tryDynamoExpiry},
	{Check{
		"dynamodb/backups", "The table can be restored, and not be deleted by mistake.",
		"After a deletion, every operation is executed again.", "I1, I12",
	}, tryDynamoBackups},
	{Check{
		"dynamodb/clock", "This machine's clock agrees with the service's.",
		"The store counts by the service's time, to about a second. That is compared with nodes' clocks " +
			"(first-sent times, times for clients).", "S3, S7, L4 [4, 42]",
	}, tryDynamoClock},
}

// dynamo is the table to examine.
type dynamo struct {
	url, table string
	client     *ddb.Client
	about      *types.TableDescription // nil if there is no table
	// left is the keys of the items to remove at the end.
	left []map[string]types.AttributeValue
}

func examineDynamoDB(ctx context.Context, at *storeurl.Location, c Config) ([]Result, error) {
	client, err := dynamostore.Client(ctx, at.URL)
	if err != nil {
		return nil, unusable(err)
	}
	table, _, _ := strings.Cut(strings.TrimPrefix(at.URL, "dynamodb://"), "?")
	p := &dynamo{url: at.URL, table: strings.TrimSuffix(table, "/"), client: client}
	if connections, ok := client.Options().HTTPClient.(interface{ CloseIdleConnections() }); ok {
		defer connections.CloseIdleConnections()
	}
	defer p.close()
	if err := within(ctx, c.Timeout, p.meet); err != nil {
		return nil, unavailable(err)
	}
	return examine(ctx, c.Timeout, p, dynamoTrials), nil
}

// meet reads the table's description. A missing table is a finding, not an error.
func (p *dynamo) meet(ctx context.Context) error {
	found, err := p.client.DescribeTable(ctx, &ddb.DescribeTableInput{TableName: &p.table})
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	p.about = found.Table
	return nil
}

// close removes the doctor's items, even after an interrupt.
func (p *dynamo) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, key := range p.left {
		_, _ = p.client.DeleteItem(ctx, &ddb.DeleteItemInput{TableName: &p.table, Key: key}) // it expires automatically
	}
}

// itemLife is the longest life of an item of the doctor.
const itemLife = time.Hour

// item returns a new item of the doctor: no kind of the
// store's keys has this prefix. It is removed at the end, or expires.
func (p *dynamo) item(value string) (key, item map[string]types.AttributeValue) {
	key = map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberB{Value: []byte("doctor" + rand.Text())},
		"sk": &types.AttributeValueMemberB{Value: []byte("doctor")},
	}
	p.left = append(p.left, key)
	return key, withValue(key, value)
}

// withValue returns the item with a key and a value.
func withValue(key map[string]types.AttributeValue, value string) map[string]types.AttributeValue {
	expires := strconv.FormatInt(time.Now().Add(itemLife).Unix(), 10)
	return map[string]types.AttributeValue{
		"pk": key["pk"], "sk": key["sk"], "value": &types.AttributeValueMemberS{Value: value},
		"expires": &types.AttributeValueMemberN{Value: expires},
	}
}

// ifAbsent is the condition that the item does not exist.
const ifAbsent = "attribute_not_exists(pk)"

const errNoTable = errNotTried("there is no table yet: open the store once, or make it, and ask again")

func tryDynamoTable(_ context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	const made = "make the table as docs/dynamodb.md says, and give the store one of its own"
	r.saw("%s, about %d items, %s", p.about.TableStatus, aws.ToInt64(p.about.ItemCount), billing(p.about))
	if p.about.TableStatus != types.TableStatusActive {
		r.find(Broken, "wait until it is active", "the table is %s", p.about.TableStatus)
	}
	want := dynamostore.Table(p.table)
	if keysOf(p.about.KeySchema) != keysOf(want.KeySchema) {
		r.find(Broken, made, "the keys of the table are %s, want %s", keysOf(p.about.KeySchema), keysOf(want.KeySchema))
	}
	for _, index := range want.GlobalSecondaryIndexes {
		found := ""
		for _, have := range p.about.GlobalSecondaryIndexes {
			if aws.ToString(have.IndexName) == *index.IndexName && keysOf(have.KeySchema) == keysOf(index.KeySchema) {
				found = string(have.IndexStatus)
			}
		}
		if found != string(types.IndexStatusActive) {
			r.find(Broken, made, "the index %s is not there, or not ready", *index.IndexName)
		}
	}
	return nil
}

// billing returns the billing mode of the table.
func billing(about *types.TableDescription) types.BillingMode {
	if about.BillingModeSummary == nil {
		return types.BillingModeProvisioned
	}
	return about.BillingModeSummary.BillingMode
}

func keysOf(schema []types.KeySchemaElement) string {
	var names []string
	for _, key := range schema {
		names = append(names, aws.ToString(key.AttributeName)+" ("+string(key.KeyType)+")")
	}
	return strings.Join(names, ", ")
}

func tryDynamoSchema(ctx context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	s, err := dynamostore.Open(ctx, p.url, dynamostore.WithReadOnly(), dynamostore.WithGlobalTable(),
		dynamostore.WithLogger(slog.New(slog.DiscardHandler)))
	switch {
	case errors.Is(err, store.ErrSchemaNewer):
		r.find(Broken, "use a newer program", "%v", err)
		return nil
	case err != nil:
		return err
	}
	r.saw("it can be used")
	return s.Close()
}

// tryDynamoConditions puts one item many times at once.
func tryDynamoConditions(ctx context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	type claim struct {
		who string
		got bool
		// seen is the item in the error of a loser.
		seen string
		err  error
	}
	key, _ := p.item("")
	claims := make(chan claim, contenders)
	for i := range contenders {
		go func() {
			c := claim{who: "contender " + strconv.Itoa(i)}
			_, err := p.client.PutItem(ctx, &ddb.PutItemInput{
				TableName: &p.table, Item: withValue(key, c.who), ConditionExpression: aws.String(ifAbsent),
				ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
			})
			var lost *types.ConditionalCheckFailedException
			if c.got = err == nil; errors.As(err, &lost) {
				c.seen = valueOf(lost.Item)
			} else {
				c.err = err
			}
			claims <- c
		}()
	}
	var winners, seen []string
	var failed error
	for range contenders {
		switch c := <-claims; {
		case c.got:
			winners = append(winners, c.who)
		case c.err != nil:
			failed = c.err
		default:
			seen = append(seen, c.seen)
		}
	}
	if failed != nil {
		return failed
	}
	const itself = "use DynamoDB itself: what answers here is an emulator or a cache that does not keep what it says"
	if len(winners) != 1 {
		r.find(Broken, itself, "%d of %d who put one item at once, if it was not there, were told that they did",
			len(winners), contenders)
		return nil
	}
	for _, name := range seen {
		if name != winners[0] {
			r.find(Broken, itself, "%s was told that it has put the item, and another that %q is there", winners[0], name)
			return nil
		}
	}
	r.saw("one of %d, and the others were told", contenders)
	return nil
}

func valueOf(item map[string]types.AttributeValue) string {
	if value, ok := item["value"].(*types.AttributeValueMemberS); ok {
		return value.Value
	}
	return ""
}

// get reads the current value of an item.
func (p *dynamo) get(ctx context.Context, key map[string]types.AttributeValue) (string, error) {
	found, err := p.client.GetItem(ctx, &ddb.GetItemInput{TableName: &p.table, Key: key, ConsistentRead: aws.Bool(true)})
	if err != nil {
		return "", err
	}
	return valueOf(found.Item), nil
}

func tryDynamoConsistency(ctx context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	const rounds = 5
	key, _ := p.item("")
	for i := range rounds {
		value := strconv.Itoa(i)
		if _, err := p.client.PutItem(ctx, &ddb.PutItemInput{TableName: &p.table, Item: withValue(key, value)}); err != nil {
			return err
		}
		if got, err := p.get(ctx, key); err != nil {
			return err
		} else if got != value {
			r.find(Broken, "use DynamoDB itself, and no accelerator (DAX) before it", "%q was written, and a consistent read "+
				"found %q", value, got)
			return nil
		}
	}
	r.saw("found in %d rounds", rounds)
	return nil
}

// tryDynamoTransactions tests a transaction that must fail, and a transaction that is sent twice.
func tryDynamoTransactions(ctx context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	key, one := p.item("one")
	absent, _ := p.item("")
	_, err := p.client.TransactWriteItems(ctx, &ddb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		{Put: &types.Put{TableName: &p.table, Item: one}},
		{ConditionCheck: &types.ConditionCheck{
			TableName: &p.table, Key: absent, ConditionExpression: aws.String("attribute_exists(pk)"),
		}},
	}})
	var cancelled *types.TransactionCanceledException
	if err != nil && !errors.As(err, &cancelled) {
		return err
	}
	const itself = "use DynamoDB itself: what answers here does not commit as one"
	if got, failed := p.get(ctx, key); failed != nil {
		return failed
	} else if err == nil || got != "" {
		r.find(Broken, itself, "a transaction whose condition does not hold was committed, in whole or in part (%v)", err)
		return nil
	}
	twice := &ddb.TransactWriteItemsInput{
		ClientRequestToken: aws.String(rand.Text()),
		TransactItems: []types.TransactWriteItem{{Put: &types.Put{
			TableName: &p.table, Item: one, ConditionExpression: aws.String(ifAbsent),
		}}},
	}
	if _, err := p.client.TransactWriteItems(ctx, twice); err != nil {
		return err
	}
	// The second time, the item exists. Only a server that recognises the token does not check the condition again.
	switch _, err := p.client.TransactWriteItems(ctx, twice); {
	case errors.As(err, &cancelled):
		r.find(Broken, itself, "a transaction that was sent twice with the same token was tried twice")
	case err != nil:
		return err
	default:
		r.saw("undone as a whole, and done once")
	}
	return nil
}

func tryDynamoRegions(_ context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	var regions []string
	for _, replica := range p.about.Replicas {
		regions = append(regions, aws.ToString(replica.RegionName))
	}
	r.saw("%d replicas in other regions", len(regions))
	if len(regions) > 0 && p.about.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		r.find(Broken, "use a table of one region, or one with multi-region strong consistency",
			"it is a global table with replicas in %s, and eventual consistency between them", strings.Join(regions, ", "))
	}
	return nil
}

func tryDynamoExpiry(ctx context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	found, err := p.client.DescribeTimeToLive(ctx, &ddb.DescribeTimeToLiveInput{TableName: &p.table})
	if err != nil {
		return err
	}
	about := found.TimeToLiveDescription
	if about == nil {
		about = &types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusDisabled}
	}
	name := aws.ToString(about.AttributeName)
	r.saw("%s %s", about.TimeToLiveStatus, name)
	on := about.TimeToLiveStatus == types.TimeToLiveStatusEnabled || about.TimeToLiveStatus == types.TimeToLiveStatusEnabling
	if !on || name != "expires" {
		r.find(Weak, "aws dynamodb update-time-to-live --table-name "+p.table+
			" --time-to-live-specification Enabled=true,AttributeName=expires",
			"the time to live of the table is %s, on the attribute %q", about.TimeToLiveStatus, name)
	}
	return nil
}

// tryDynamoBackups adds only notes: a table without backups keeps every promise until it is deleted.
func tryDynamoBackups(ctx context.Context, p *dynamo, r *Result) error {
	if p.about == nil {
		return errNoTable
	}
	if !aws.ToBool(p.about.DeletionProtectionEnabled) {
		r.find(Note, "enable deletion protection", "the table can be deleted by one call")
	}
	found, err := p.client.DescribeContinuousBackups(ctx, &ddb.DescribeContinuousBackupsInput{TableName: &p.table})
	var refused smithy.APIError
	switch {
	case errors.As(err, &refused):
		r.saw("the service does not tell of backups: %s", refused.ErrorCode()) // an emulator, or a missing right
		return nil
	case err != nil:
		return err
	}
	about, status := found.ContinuousBackupsDescription, types.PointInTimeRecoveryStatusDisabled
	if about != nil && about.PointInTimeRecoveryDescription != nil {
		status = about.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus
	}
	if r.saw("point-in-time recovery is %s", status); status != types.PointInTimeRecoveryStatusEnabled {
		r.find(Note, "enable point-in-time recovery", "the table cannot be restored to a point in time")
	}
	return nil
}

// tryDynamoClock reads the time in the server's replies, which has no fractions of a second.
func tryDynamoClock(ctx context.Context, p *dynamo, r *Result) error {
	sent := time.Now()
	_, err := p.client.DescribeTable(ctx, &ddb.DescribeTableInput{TableName: &p.table}, func(o *ddb.Options) {
		o.Retryer = aws.NopRetryer{}
	}, withServerTime(func(shown time.Time) {
		least, most := time.Until(shown), shown.Add(time.Second).Sub(sent)
		r.saw("the service's clock is ahead by %s to %s", round(least), round(most))
		const sync = "let NTP or its like set the clock of this machine, and alert on the offset"
		switch {
		case least > maxSkew:
			r.find(Weak, sync, "the service's clock is at least %s ahead of this machine's", round(least))
		case most < -maxSkew:
			r.find(Weak, sync, "the service's clock is at least %s behind this machine's", round(-most))
		}
	}))
	var missing *types.ResourceNotFoundException
	switch {
	case err != nil && !errors.As(err, &missing):
		return err
	case r.Seen == "":
		return errNotTried("the service does not tell its time")
	default:
		return nil
	}
}

// withServerTime calls tell with the time in each reply.
func withServerTime(tell func(time.Time)) func(*ddb.Options) {
	return func(o *ddb.Options) {
		inside := o.HTTPClient
		o.HTTPClient = roundTrip(func(request *http.Request) (*http.Response, error) {
			response, err := inside.Do(request)
			if err == nil {
				if shown, failed := http.ParseTime(response.Header.Get("Date")); failed == nil {
					tell(shown)
				}
			}
			return response, err
		})
	}
}

// roundTrip is a function that sends a request.
type roundTrip func(*http.Request) (*http.Response, error)

// Do implements the client of the SDK.
func (f roundTrip) Do(request *http.Request) (*http.Response, error) { return f(request) }
