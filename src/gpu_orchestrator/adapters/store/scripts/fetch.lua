-- Rows of tasks and workers, whole.
-- Arguments: task ids, worker names
-- Answers {now, tasks {field, value, ...} each, workers {lease, active, field, value, ...} each}; {} for what is not there
local tasks, workers = {}, {}
for number, id in ipairs(ARG[1]) do tasks[number] = redis.call('HGETALL', P .. 't:' .. id) end
for number, name in ipairs(ARG[2]) do
  local row = redis.call('HGETALL', P .. 'w:' .. name)
  if #row > 0 then
    row[#row + 1] = 'lease'
    row[#row + 1] = redis.call('ZSCORE', P .. 'leases', name) or '0'
    row[#row + 1] = 'active'
    row[#row + 1] = text(redis.call('SCARD', P .. 'on:' .. name))
    row[#row + 1] = 'now'
    row[#row + 1] = text(NOW)
    local counters = redis.call('HGETALL', P .. 'd:' .. name)
    for _, item in ipairs(counters) do row[#row + 1] = item end
  end
  workers[number] = row
end
return cmsgpack.pack({{}, {NOW, tasks, workers}})
