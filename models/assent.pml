/* The protocol of docs/protocol.md, small enough for every interleaving of it to be tried.
 *
 * RUNS drivers of one query, EPOCHS epochs, PARTITIONS tasks each. A run may crash anywhere, or
 * only be slow: the next one never asks. A creation may land late, after its writer has given up.
 * The store may give up what is open. What the checker proves, for all of that:
 *
 *   rule 1  nothing is committed that no decision names          assert in `commit`
 *   rule 2  a record is never changed                            `create` creates if absent
 *   rule 3  nothing is aborted that a decision names             assert in `abort_transaction`
 *   rule 6  what is swept can never be decided                   assert in `create`
 *   rule 8  an epoch has one decision                            assert in `create`
 *   no row of an epoch is visible twice                          assert in `commit`
 *   at the end all epochs that were decided are visible          assert in `init`
 *
 * Run:  spin -a assent.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 * With -DBROKEN_… one rule is left out, and the checker has to find a counterexample.
 */

#ifndef RUNS
#define RUNS 2
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif
#define PARTITIONS 2
#define PLACES (EPOCHS + 1)
#define NONE 255

/* A record under (place, term): nothing yet, a void, or the decision of an epoch. */
#define EMPTY 0
#define VOID 1
#define DECISION(epoch) (2 + (epoch))

/* A transaction of (term, place, partition). */
#define UNUSED 0
#define OPEN 1
#define COMMITTED 2
#define ABORTED 3

#define KEY(term, place) ((term) * PLACES + (place))
#define TRANSACTION(term, place, partition) (KEY(term, place) * PARTITIONS + (partition))

byte record[RUNS * PLACES];
byte state[RUNS * PLACES * PARTITIONS];
byte epoch_of[RUNS * PLACES];     /* what the tasks of a key write */
byte late[RUNS * PLACES];         /* a creation that is under way, and whose writer has gone */
byte owner[RUNS];                 /* which run has a term */
byte first_place[RUNS];
byte terms = 0;                   /* how many terms are taken */
byte finished = 0;                /* epochs in the engine's commit log */
byte visible[EPOCHS * PARTITIONS];
byte gone = 0;                    /* runs that have ended */

/* Create if absent. The assertions hold at the instant in which a decision comes to be. */
inline create(key, value)
{
    if
    :: record[key] == EMPTY ->
        record[key] = value;
        if
        :: value != VOID ->
            other = 0;
            do
            :: other < RUNS * PLACES ->
                assert(other == key || record[other] != value);            /* rule 8 */
                other++
            :: else -> break
            od;
            other = 0;
            do
            :: other < PARTITIONS ->
                assert(swept[key * PARTITIONS + other] == 0);              /* rule 6 */
                other++
            :: else -> break
            od
        :: else
        fi
    :: else
    fi;
    other = 0
}

bool swept[RUNS * PLACES * PARTITIONS];

inline abort_transaction(which)
{
    if
    :: state[which] == OPEN ->
        assert(record[which / PARTITIONS] < 2);                            /* rule 3 */
        state[which] = ABORTED;
        swept[which] = 1
    :: else
    fi
}

inline commit(which)
{
    if
    :: state[which] == OPEN ->
#ifndef BROKEN_COMMIT_BEFORE_DECIDE
        assert(record[which / PARTITIONS] >= 2);                           /* rule 1 */
#endif
        state[which] = COMMITTED;
        visible[epoch_of[which / PARTITIONS] * PARTITIONS + which % PARTITIONS]++;
        assert(visible[epoch_of[which / PARTITIONS] * PARTITIONS + which % PARTITIONS] == 1)
    :: else
    fi
}

/* Whether a term has a void. */
inline is_closed(term, answer)
{
    answer = false;
    other = 0;
    do
    :: other < PLACES -> answer = answer || record[KEY(term, other)] == VOID; other++
    :: else -> break
    od;
    other = 0
}

proctype Run(byte me)
{
    byte term = NONE, place, epoch, i, other, old;
    bool closed, torn, decided;

    /* 0. Recover: close, then take. */
take:
    atomic {
        old = terms;
        place = 0;
    }
    if
    :: old > 0 ->
        place = first_place[old - 1];
close:
        atomic {
#ifndef BROKEN_TAKE_WITHOUT_CLOSING
            if
            :: place < PLACES -> create(KEY(old - 1, place), VOID)
            :: else
            fi;
            if
            :: place < PLACES && record[KEY(old - 1, place)] != VOID -> place++; goto close
            :: else
            fi
#else
            do
            :: place < PLACES && record[KEY(old - 1, place)] >= 2 -> place++
            :: else -> break
            od
#endif
        }
    :: else
    fi;
    atomic {
        if
        :: terms != old -> goto take        /* another run was faster */
        :: terms == RUNS -> goto end
        :: else ->
            term = terms;
            owner[term] = me;
            first_place[term] = place;
            terms++
        fi
    }

next:
    /* Finish every unfinished decision, of any term, before anything else. */
    i = 0;
    do
    :: i < RUNS * PLACES * PARTITIONS ->
        atomic {
            if
            :: record[i / PARTITIONS] >= 2 -> commit(i)
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
    i = 0;
    /* Sweep: what no record names, and whose term is closed or whose place is past. */
    do
    :: i < RUNS * PLACES * PARTITIONS ->
        atomic {
            is_closed(i / (PLACES * PARTITIONS), closed);
            if
            :: state[i] == OPEN && record[i / PARTITIONS] < 2 &&
#ifdef BROKEN_SWEEP_TOO_EAGER
               (true || closed) -> abort_transaction(i)
#else
               (closed || (i / (PLACES * PARTITIONS) == term &&
                           (i / PARTITIONS) % PLACES < place)) -> abort_transaction(i)
#endif
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
    i = 0;

    atomic {
        /* The engine says which epoch comes next; a decided one is finished, not written again. */
        epoch = finished;
        decided = false;
        other = 0;
        do
        :: other < RUNS * PLACES -> decided = decided || record[other] == DECISION(epoch); other++
        :: else -> break
        od;
        other = 0;
        if
        :: epoch >= EPOCHS || place >= PLACES -> goto end
        :: terms > term + 1 -> goto end     /* fenced: somebody holds a higher term */
        :: else
        fi
    }
    if
    :: decided ->
        /* All its handles are committed (above), or the store gave some up: then this model stops,
         * since rewriting is the subject of the simulator, not of this proof. */
        atomic {
            torn = false;
            i = 0;
            do
            :: i < RUNS * PLACES * PARTITIONS ->
                torn = torn || (record[i / PARTITIONS] == DECISION(epoch) && state[i] != COMMITTED);
                i++
            :: else -> break
            od;
            i = 0;
            if
            :: torn -> goto end
            :: finished == epoch -> finished++
            :: else
            fi
        }
        goto next
    :: else
    fi;

    /* 1 to 3. Begin, write, pre-commit: tasks under (term, place). */
    epoch_of[KEY(term, place)] = epoch;
    do
    :: i < PARTITIONS -> state[TRANSACTION(term, place, i)] = OPEN; i++
    :: else -> break
    od;
    i = 0;
    if
    :: true
    :: goto end                             /* killed */
    fi;
#ifdef BROKEN_COMMIT_BEFORE_DECIDE
    commit(TRANSACTION(term, place, 0));
#endif

    /* 4. Decide. The answer may be lost, and the creation land later: then void, and look. */
    if
    :: atomic { create(KEY(term, place), DECISION(epoch)) }
    :: late[KEY(term, place)] = DECISION(epoch);
#ifndef BROKEN_NO_VOID_AFTER_LOST_ANSWER
       atomic { create(KEY(term, place), VOID) };
#else
       do
       :: i < PARTITIONS ->
           atomic { abort_transaction(TRANSACTION(term, place, i)); i++ }
       :: else -> break
       od;
       i = 0;
       goto end
#endif
    fi;
    if
    :: record[KEY(term, place)] == VOID ->
        /* Abort: only after the void stands. */
        do
        :: i < PARTITIONS -> atomic { abort_transaction(TRANSACTION(term, place, i)); i++ }
        :: else -> break
        od;
        goto end
    :: else
    fi;

    /* 5. Commit. */
    do
    :: i < PARTITIONS -> atomic { commit(TRANSACTION(term, place, i)); i++ }
    :: i < PARTITIONS -> goto end           /* killed */
    :: else -> break
    od;
    i = 0;
#ifdef BROKEN_ABORT_AFTER_DECIDE
    atomic { state[TRANSACTION(term, place, 0)] = OPEN;
             abort_transaction(TRANSACTION(term, place, 0)) };
#endif

    /* 6 and 7. Complete; the engine writes its commit log, if all is committed. */
    atomic {
        torn = false;
        do
        :: i < PARTITIONS ->
            torn = torn || state[TRANSACTION(term, place, i)] != COMMITTED;
            i++
        :: else -> break
        od;
        i = 0;
        if
        :: torn -> goto end
        :: finished == epoch -> finished++
        :: else
        fi;
        place++
    }
    goto next;
end:
    gone++
}

/* Creations that are under way land, at any time; so late that nobody waits for them. */
proctype Network()
{
    byte key, other;
    do
    :: atomic {
        select(key : 0 .. (RUNS * PLACES - 1));
        if
        :: late[key] != EMPTY -> create(key, late[key]); late[key] = EMPTY
        :: else
        fi
       }
    :: gone == RUNS -> break
    od
}

init {
    byte i = 0;
    atomic {
        do
        :: i < RUNS -> run Run(i); i++
        :: else -> break
        od;
        run Network()
    };
    gone == RUNS;
    atomic {
        i = 0;
        do
        :: i < finished * PARTITIONS -> assert(visible[i] == 1); i++       /* nothing is lost */
        :: else -> break
        od
    }
}
