-- Read what decides whether ended tasks must be forgotten before their time.
-- Arguments: none
-- Answers {ended tasks, bytes of results that are not in their task's row, why tasks are forgotten just now or ''}
local ended = 0
for _, state in ipairs({'completed', 'failed', 'cancelled', 'dead'}) do
  ended = ended + redis.call('ZCARD', P .. 's:' .. state)
end
return cmsgpack.pack({{}, {ended, tonumber(redis.call('GET', P .. 'results:bytes') or 0),
  redis.call('GET', P .. 'forgetting') or ''}})
