package postgres

import "strconv"

// statements are the texts of this package with the names of the tables put in. Those with a name are prepared on the
// connections of handlers.
type statements struct {
	moment, lockRecord, insertRecord, updateRecord, deleteRecord, get string

	remember string

	begin, claim, claimBounded, lookUp, insertAnswer, replaceAnswer, commit, awaitLock, underWay, advance statement

	batch [kinds]statement
	add   addStatements
}

func prepareStatements(n names, channel string, usual bool) statements {
	// Several stores may share a connection: their statements have different names.
	named := func(name, text string) statement {
		return statement{name: channel + "_" + name, text: n.render(text)}
	}
	all := statements{
		moment: n.render(selectMoment), lockRecord: n.render(lockRecord), insertRecord: n.render(insertRecord),
		remember:     n.render(rememberEvent),
		updateRecord: n.render(updateRecord), deleteRecord: n.render(deleteRecord), get: n.render(getRecord),

		begin: named("begin", begin), claim: named("claim", claim), claimBounded: named("bounded", claimBounded),
		lookUp:       named("lookup", lookUp),
		insertAnswer: named("insert", insertAnswer), replaceAnswer: named("replace", replaceAnswer),
		commit: named("commit", `COMMIT`), awaitLock: named("await", awaitLock),
		underWay: named("underway", underWay),
		advance:  named("advance", advance),
	}
	all.add = prepareAdd(channel, named)
	if usual {
		all.begin.text = `BEGIN`
	}
	for k, text := range batchStatements {
		all.batch[k] = named("batch_"+strconv.Itoa(k), text)
	}
	return all
}

// transactional are those that a connection of handlers knows before it begins a transaction. The last of them stands for all.
func (s *statements) transactional() []*statement {
	return []*statement{&s.begin, &s.claim, &s.claimBounded, &s.lookUp, &s.insertAnswer, &s.commit}
}
