-- Read the number of tasks in each state, the counters, the names of the workers and the leader.
-- Arguments: none
-- Answers {now, {state, count, ...}, {counter, value, ...}, worker names, {leader, fence, until}}
local states = {}
for _, state in ipairs({'scheduled', 'queued', 'assigned', 'running', 'completed', 'failed', 'cancelled', 'dead'}) do
  states[#states + 1] = state
  states[#states + 1] = redis.call('ZCARD', P .. 's:' .. state)
end
local leader = redis.call('HMGET', P .. 'leader', 'owner', 'fence', 'until')
return cmsgpack.pack({{}, {NOW, states, redis.call('HGETALL', P .. 'stats'), redis.call('SMEMBERS', P .. 'workers'),
  {leader[1] or '', leader[2] or '0', leader[3] or '0'}}})
