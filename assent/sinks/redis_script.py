"""What runs inside Redis, each script in one act.

Versions are digits of one length, (base, epoch, term), and compare as texts: see `version`.
"""

from __future__ import annotations

FENCED = "ASSENTFENCED"
"""With this begins the answer to a write that comes after one of a higher version."""

# KEYS: fence, orders, then one key per row.
# ARGV: version, structure, time to live in ms or '', then per row: a note and arguments. The note
# is the number of arguments; where rows have an order or an instant of expiry (in ms), these two
# follow it, after a colon each.
#
# The fence is always written: whoever waits until this call is on disk waits for something. The
# orders are those of one epoch (base and epoch are the first 32 digits), whatever the run.
WRITE = """
local fence = redis.call('GET', KEYS[1])
if fence and fence > ARGV[1] then
  return redis.error_reply('ASSENTFENCED ' .. fence)
end
if not fence or string.sub(fence, 1, 32) ~= string.sub(ARGV[1], 1, 32) then
  redis.call('UNLINK', KEYS[2])
end
redis.call('SET', KEYS[1], ARGV[1])
local structure, ttl = ARGV[2], ARGV[3]
local at = 4
for row = 3, #KEYS do
  local key, order, expiry, count = KEYS[row], '', '', tonumber(ARGV[at])
  if not count then
    count, order, expiry = string.match(ARGV[at], '(%d+):(%d*):(%d*)')
    count = tonumber(count)
  end
  local first, last = at + 1, at + count
  at = last + 1
  local wins = true
  if order ~= '' then
    local field = key
    if structure == 'sortedSet' then
      field = #key .. ':' .. key .. ARGV[last]
    end
    local known = redis.call('HGET', KEYS[2], field)
    wins = not known or known <= order
    if wins then
      redis.call('HSET', KEYS[2], field, order)
    end
  end
  if wins then
    if structure == 'sortedSet' then
      if count == 1 then
        redis.call('ZREM', key, ARGV[first])
      else
        redis.call('ZADD', key, ARGV[first], ARGV[last])
      end
    elseif structure == 'hash' then
      redis.call('DEL', key)
      -- In parts: Lua takes no more than some 8000 arguments, and DEL is not undone.
      for from = first, last, 4000 do
        redis.call('HSET', key, unpack(ARGV, from, math.min(from + 3999, last)))
      end
    elseif count == 0 then
      redis.call('DEL', key)
    else
      redis.call('SET', key, ARGV[first])
    end
    if expiry ~= '' then
      redis.call('PEXPIREAT', key, expiry)
    elseif ttl ~= '' then
      redis.call('PEXPIRE', key, ttl)
    end
  end
end
return #KEYS - 2
"""

# KEYS: owner. ARGV: format, owner, epoch, term, take over.
# A newer epoch begins only when all older ones are complete, so their votes are forgotten.
CLAIM = """
local held = redis.call('HMGET', KEYS[1], 'format', 'owner', 'base', 'epoch', 'term')
local function hold(answer, base)
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'owner', ARGV[2], 'base', base,
    'epoch', ARGV[3], 'term', ARGV[4])
  return {answer, tostring(base)}
end
if not held[1] then
  return hold('new', 1)
end
if held[1] ~= ARGV[1] then
  return {'format', held[1]}
end
if ARGV[5] == held[2] .. '-' .. held[3] then
  return hold('taken', tonumber(held[3]) + 1)
end
if held[2] ~= ARGV[2] then
  return {'owned', held[2], held[3], held[4], held[5]}
end
local epoch, term = tonumber(ARGV[3]), tonumber(ARGV[4])
local newest, run = tonumber(held[4]), tonumber(held[5])
if epoch < newest or (epoch == newest and term < run) then
  return {'late', held[2], held[3], held[4], held[5]}
end
if epoch > newest then
  return hold('held', tonumber(held[3]))
end
redis.call('HSET', KEYS[1], 'term', ARGV[4])
return {'held', held[3]}
"""

# KEYS: owner. ARGV: owner, base, epoch, vote.
VOTE = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'base', 'epoch')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] or held[3] ~= ARGV[3] then
  return 0
end
redis.call('HSET', KEYS[1], 'vote:' .. ARGV[4], '1')
return 1
"""


def version(base: int, epoch: int, term: int) -> bytes:
    """A later base wins, then a later epoch, then a later run.

    >>> version(1, 9, 3) < version(1, 10, 0) < version(2, 0, 0)
    True
    """
    return b"%012d%020d%012d" % (base, epoch, term)
